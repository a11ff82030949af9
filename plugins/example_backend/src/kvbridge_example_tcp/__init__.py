"""Backend `example_tcp`: KV cache over a plain TCP socket."""

from kvbridge_example_tcp.backend import ExampleTcpBackend, ExampleTcpOptions

__all__ = ["ExampleTcpBackend", "ExampleTcpOptions"]
