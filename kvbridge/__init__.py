"""kvbridge: move the KV cache of large language models between engines, over any backend, never silently.

Importing this package loads no torch, no ZeroMQ and no plugin. The contracts live in `kvbridge.abc`.
"""

from kvbridge.version import __version__

__all__ = ["__version__"]
