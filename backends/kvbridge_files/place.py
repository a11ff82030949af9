"""Whether a folder is a place for values, and why not. Looks, and makes nothing."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kvbridge.errors import KVBridgeError
from kvbridge_files.ledger import NAME

if TYPE_CHECKING:
    from kvbridge_files.options import FilesOptions

LEAST_CAPACITY, MOST_CAPACITY = 1 << 20, 1 << 60

SHARED_BY_HOSTS = re.compile(
    r"(afs|beegfs|ceph|cifs|gfs2?|glusterfs|gpfs|lustre|ncpfs|nfs4?|ocfs2|orangefs|pvfs2|smb3?|smbfs|wekafs)"
    r"|fuse\.(sshfs|glusterfs|ceph.*|s3fs|rclone|gcsfuse|juicefs)"
)
"""File systems of several hosts. Their locks and links do not hold, or not always, what is built on them here."""

WITHOUT_LINKS = re.compile(r"msdos|vfat|exfat")


def folder_of(options: FilesOptions) -> Path:
    """Return the path of the folder.

    Raises:
        ValueError: It is none; the message says why.
        RuntimeError: `~` has no meaning here.
        OSError: It cannot be looked at.
    """
    if not options.folder:
        raise ValueError("name a folder that holds nothing else")
    path = Path(options.folder).expanduser()
    if not path.is_absolute():
        raise ValueError("it is relative, and each process has its own working directory")
    return path.resolve()


def unusable(options: FilesOptions) -> str:
    """Say why values cannot be kept there; empty if they can. Never raises."""
    if not sys.platform.startswith("linux"):
        return "it needs Linux"
    try:
        capacity = options.capacity_bytes()
    except (KVBridgeError, OverflowError, ValueError) as error:
        return str(error)
    if not LEAST_CAPACITY <= capacity <= MOST_CAPACITY:
        return f"options.capacity is {capacity} bytes, expected {LEAST_CAPACITY} to {MOST_CAPACITY}"
    try:
        why = _unusable(folder_of(options))
    except (ValueError, OSError, RuntimeError) as error:
        why = str(error)
    return why and f"options.folder is {options.folder!r}, expected the absolute path of a folder of its own: {why}"


def _unusable(folder: Path) -> str:
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not there.is_dir():
        return f"{there} is no folder"
    if not os.access(there, os.R_OK | os.W_OK | os.X_OK):
        return f"cannot write to {there}"
    if there == folder and not (folder / NAME).exists() and any(folder.iterdir()):
        return "it holds something else"
    kind = _file_system(there)
    if SHARED_BY_HOSTS.fullmatch(kind):
        return f"it is on {kind}, whose locks and links are not those of a local file system"
    if WITHOUT_LINKS.fullmatch(kind):
        return f"it is on {kind}, which has no links"
    return ""


def _file_system(path: Path) -> str:
    """Return the kind of file system that a path is on; empty if that cannot be told."""
    found, longest = "", -1
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines():
        mount, _, source = line.partition(" - ")
        where = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), mount.split()[4])
        if path.is_relative_to(where) and len(where) >= longest:  # what is mounted last covers what was there
            found, longest = source.split()[0], len(where)
    return found
