"""A buffer with checksums is a buffer: what the contract says of one holds, with peers in processes of their own."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.doors.running import Doors

BACKEND = """
from kvbridge.layers.checked import CheckedBuffer
from kvbridge_cpu import CpuBackend


class Checked(CpuBackend):
    name = "checked"

    def open_buffer(self, endpoint, **options):
        return CheckedBuffer(super().open_buffer(endpoint, **options), endpoint)
"""


def test_it_conforms(doors: Doors) -> None:
    doors.site.write("checked", BACKEND)
    doors.site.install("checked-backend", "checked", "checked:Checked")
    parts = [("buffer",), ("fault", "connector")] if os.environ.get("KVBRIDGE_LONG") else [("buffer/0",), ("buffer/3",)]
    runs = {part[0]: partial(doors.kvbridge, "checked", *part, "--peers", "process") for part in parts}
    for part, done in doors.all(runs).items():
        assert done.code == 0, f"{part}: {done.said}"
