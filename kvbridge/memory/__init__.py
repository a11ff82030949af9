"""Memory that is moved: regions and their pages, tensors, the layout of an engine's cache, and a pool allocator."""

from kvbridge.memory.pages import Pages, PagesSpec
from kvbridge.memory.payload import Payload, Spec, spec_of
from kvbridge.memory.region import Region
from kvbridge.memory.tensors import TensorSpec

__all__ = ["Pages", "PagesSpec", "Payload", "Region", "Spec", "TensorSpec", "spec_of"]
