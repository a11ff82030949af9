"""`HostPool` and CUDA, which is faked here: there is no GPU."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

import pytest

from kvbridge.errors import ConfigError
from kvbridge.memory.host_pool import HostPool

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE = 4096


class FakeCuda:
    """What the pool uses of torch: CUDA's runtime, with codes that say how its calls end."""

    def __init__(self, *, there: bool = True, code: int = 0) -> None:
        self.cuda = self
        self.calls: list[tuple[object, ...]] = []
        self.there, self.code = there, code

    def is_available(self) -> bool:
        return self.there

    def cudart(self) -> FakeCuda:
        assert self.there
        return self

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> int:  # noqa: N802 - CUDA's name
        self.calls.append(("pin", address, nbytes, flags))
        return self.code

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802 - CUDA's name
        self.calls.append(("unpin", address))
        return self.code


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeCuda]:
    def install(**how: Any) -> FakeCuda:
        fake = FakeCuda(**how)
        monkeypatch.setitem(sys.modules, "torch", fake)
        return fake

    return install


@pytest.mark.parametrize("pinned", [None, True])
def test_memory_is_pinned_while_the_pool_is_open(torch: Callable[..., FakeCuda], *, pinned: bool | None) -> None:
    fake = torch()
    pool = HostPool(3 * PAGE, pinned=pinned)
    assert pool.pinned
    address = pool.allocate(3 * PAGE).memory.ctypes.data
    assert fake.calls == [("pin", address, 3 * PAGE, 0)]
    for _ in range(2):
        pool.close()
    assert fake.calls[1:] == [("unpin", address)]


def test_memory_is_not_pinned_where_it_is_not_wanted_or_there_is_no_gpu(torch: Callable[..., FakeCuda]) -> None:
    for there, pinned in ((True, False), (False, None), (False, False)):
        fake = torch(there=there)
        pool = HostPool(PAGE, pinned=pinned)
        assert not pool.pinned
        pool.close()
        assert not fake.calls


@pytest.mark.parametrize("installed", [False, True])
def test_pinned_memory_without_a_gpu_is_refused(
    torch: Callable[..., FakeCuda], monkeypatch: pytest.MonkeyPatch, *, installed: bool
) -> None:
    torch(there=False)
    if not installed:
        monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ConfigError, match=r"pinned=True.*no CUDA.*pass None"):
        HostPool(PAGE, pinned=True)
    HostPool(PAGE).close()


def test_memory_that_cuda_will_not_pin_is_refused(torch: Callable[..., FakeCuda]) -> None:
    torch(code=2)
    with pytest.raises(ConfigError, match=f"cannot pin {PAGE} bytes: CUDA error 2.*pinned=False"):
        HostPool(PAGE)


def test_memory_that_cuda_will_not_unpin_is_told(
    torch: Callable[..., FakeCuda], caplog: pytest.LogCaptureFixture
) -> None:
    fake = torch()
    pool = HostPool(PAGE)
    fake.code = 4
    with caplog.at_level(logging.WARNING):
        pool.close()
    assert "CUDA error 4" in caplog.text


def test_torch_is_not_loaded_for_a_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    pool = HostPool(PAGE)
    assert "torch" not in sys.modules
    assert not pool.pinned
    pool.close()
