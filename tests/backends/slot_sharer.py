"""A process that shares slots with others: fills some, reads some, and says what it saw. For test_shared_slots."""

from __future__ import annotations

import hashlib
import json
import random
import sys
import time

import numpy as np

from kvbridge.reuse.common import CommonSlots
from kvbridge.reuse.processes import this_process
from kvbridge.reuse.shared_catalog import SharedCatalog

SLOTS = 24
PAGE = 8192
KEYS = 60


def key(number: int) -> bytes:
    return hashlib.blake2b(str(number).encode(), digest_size=16).digest()


def content(number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 255, PAGE, dtype=np.uint8)


def main(name: str, seed: int, seconds: float, *, stop_while: str = "") -> None:
    common = CommonSlots(name, [PAGE], SLOTS, 1)
    catalog = SharedCatalog(common)
    catalog.joined([this_process()])
    rows = common.of_rank(0).reshape(SLOTS, PAGE)
    chooser = random.Random(seed)
    said = {"hits": 0, "fills": 0, "wrong": 0, "holder": False}
    print("ready", flush=True)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        first = chooser.randrange(KEYS)
        numbers = [(first + step) % KEYS for step in range(chooser.randrange(1, 6))]
        keys = [key(number) for number in numbers]
        found = catalog.leading(keys)
        places = catalog.pin(keys[:found])
        number_of = dict(zip(keys, numbers, strict=True))
        for place in places:  # not for all that were found: another process may have given one up a moment ago
            said["hits"] += 1
            said["wrong"] += not np.array_equal(rows[place.slot], content(number_of[place.key]))
        catalog.unpin(places)
        filled = catalog.reserve(keys)
        for place in filled:
            half = content(number_of[place.key])
            rows[place.slot][: PAGE // 2] = half[: PAGE // 2]
            if stop_while == "filling":
                print("filling", flush=True)
                time.sleep(60)
            rows[place.slot][PAGE // 2 :] = half[PAGE // 2 :]
        said["fills"] += len(catalog.publish(filled))
        if stop_while == "pinning":
            catalog.pin(keys)
            print("pinning", flush=True)
            time.sleep(60)
    said["holder"] = common.memory.held
    said["pinned"], said["filling"], said["kept"] = catalog.pinned, catalog.filling, len(catalog)
    catalog.close()
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), stop_while=sys.argv[4] if len(sys.argv) > 4 else "")
