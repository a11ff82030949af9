"""Backend `example_folder`: KV cache in the files of a folder."""

from kvbridge_example_folder.backend import ExampleFolderBackend, ExampleFolderOptions

__all__ = ["ExampleFolderBackend", "ExampleFolderOptions"]
