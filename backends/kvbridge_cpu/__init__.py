"""Backend `cpu`: host shared memory between processes of one host. The embedded default."""

from kvbridge_cpu.backend import CpuBackend, CpuOptions

__all__ = ["CpuBackend", "CpuOptions"]
