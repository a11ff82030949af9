"""Backend `nccl`: two-sided, on torch.distributed's process groups. NCCL for GPU memory, gloo for host memory."""

from kvbridge_nccl.backend import NcclBackend
from kvbridge_nccl.options import NcclOptions

__all__ = ["NcclBackend", "NcclOptions"]
