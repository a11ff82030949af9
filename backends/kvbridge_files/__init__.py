"""Backend `files`: values in the files of a folder, for all processes of one host, with a cap that they share."""

from __future__ import annotations

from kvbridge_files.options import FilesOptions
from kvbridge_files.store import FilesStore

__all__ = ["FilesOptions", "FilesStore"]
