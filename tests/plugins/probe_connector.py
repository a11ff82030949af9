"""A connector that looks at the pages which leave and arrive, and that can spoil them: the negative control.

Loaded by `kv_connector_module_path`. The folder in KVBRIDGE_TEST_PROBE gets one JSON file for each request and side;
while it holds a file `zero`, every page that arrives is overwritten with zeros, and while it holds a file `hold`, no
copy of reuse goes on.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from kvbridge.abc.connector import Outcome
from kvbridge.connector.handoff_worker import HandoffWorker
from kvbridge.connector.reuse_worker import ReuseWorker
from kvbridge_vllm.connector import KVBridgeConnector

if TYPE_CHECKING:
    from kvbridge.memory import Pages


def _folder() -> Path:
    return Path(os.environ["KVBRIDGE_TEST_PROBE"])


def _page_digests(pages: Pages) -> list[list[str]]:
    return [
        [hashlib.sha256(region.rows()[block].tobytes()).hexdigest() for block in ids]
        for region, ids in zip(pages.regions, pages.block_ids, strict=True)
    ]


def _write(side: str, request_id: str, pages: Pages) -> None:
    path = _folder() / f"{side}-{request_id}.json"
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps({"blocks": pages.block_ids[0].tolist(), "digests": _page_digests(pages)}))
    partial.rename(path)


class ProbingWorker(HandoffWorker):
    def saving(self, request_id: str, pages: Pages) -> None:
        _write("saved", request_id, pages)

    def loaded(self, request_id: str, pages: Pages) -> None:
        if (_folder() / "zero").exists():
            for region, ids in zip(pages.regions, pages.block_ids, strict=True):
                region.rows()[ids] = 0
        _write("loaded", request_id, pages)


class ProbingReuse(ReuseWorker):
    def poll(self) -> Outcome:
        return Outcome() if (_folder() / "hold").exists() else super().poll()

    def loaded(self, request_id: str, pages: Pages) -> None:
        if (_folder() / "zero").exists():
            for region, ids in zip(pages.regions, pages.block_ids, strict=True):
                region.rows()[ids] = 0


class ProbeConnector(KVBridgeConnector):
    worker_half = ProbingWorker
    reuse_half = ProbingReuse
