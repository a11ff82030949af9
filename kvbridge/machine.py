"""What backends ask of the machine: where a process is, and which devices there are."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path


def host_identity() -> tuple[str, str]:
    """Name this kernel and PID namespace, and this kernel and network namespace.

    Processes with the same first name may reach into each other, those with the same second one share loopback.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    pid, net = (Path(f"/proc/self/ns/{kind}").readlink() for kind in ("pid", "net"))
    return f"{boot}/{pid}", f"{boot}/{net}"


def has_rdma() -> bool:
    """Whether this machine has an RDMA device."""
    folder = Path("/sys/class/infiniband")
    return folder.is_dir() and any(folder.iterdir())


def has_gpu() -> bool:
    """Whether this machine has a GPU of NVIDIA's, whoever uses it."""
    return any(Path("/dev").glob("nvidia[0-9]*"))


def is_loopback(host: str) -> bool:
    """Whether nobody but this machine reaches an address. A name is not looked up: of names `localhost` alone."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
