"""Which decode engine a request's id names."""

from __future__ import annotations

import pytest

from kvbridge.connector.consumers import consumers, name

UUID = "0123456789abcdef0123456789abcdef"


def id_of(decode: str) -> str:
    """An id as vLLM makes it of what the router wrote."""
    return f"cmpl-___prefill_addr_10.0.0.1:8000___decode_addr_{decode}_{UUID}-0-a1b2c3d4"


@pytest.mark.parametrize(
    "addresses", [("tcp://127.0.0.1:4000",), ("tcp://10.0.0.2:1", "tcp://10.0.0.2:65535"), ("tcp://[::1]:7",)]
)
def test_what_an_engine_registers_comes_back_as_the_addresses_of_its_ranks(addresses: tuple[str, ...]) -> None:
    assert consumers(id_of(name(addresses)), len(addresses)) == addresses


@pytest.mark.parametrize(
    ("request_id", "ranks"),
    [
        ("cmpl-1234", 1),
        (id_of("10.0.0.2:1"), 2),
        (id_of("10.0.0.2:1,10.0.0.2:2"), 1),
        (id_of("no address"), 1),
        (id_of("http://10.0.0.2:1"), 1),
        (id_of("10.0.0.2:1,"), 2),
        (id_of(""), 1),
        ("___decode_addr_10.0.0.2:1_short", 1),
        ("___decode_addr_" + "1" * 100_000, 1),
    ],
)
def test_an_id_that_does_not_name_so_many_ranks_names_nobody(request_id: str, ranks: int) -> None:
    assert consumers(request_id, ranks) == ()
