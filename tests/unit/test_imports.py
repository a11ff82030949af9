"""What an import costs: `kvbridge` loads nothing heavy, and listing backends imports none of them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = ["torch", "zmq", "numpy", "stevedore", "msgspec", "kvbridge_cpu", "kvbridge_vllm", "vllm", "rich", "click"]


def loaded(code: str) -> list[str]:
    """Which of the heavy modules are loaded after some code ran in a new interpreter."""
    code = f"import json, sys\n{code}\nprint(json.dumps([name for name in {HEAVY} if name in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_importing_kvbridge_loads_nothing_heavy() -> None:
    assert loaded("import kvbridge; assert kvbridge.__version__") == []


def test_listing_backends_imports_none_and_neither_torch_nor_sockets() -> None:
    code = "from kvbridge.registry import *\nassert 'cpu' in [e.name for e in list_backends()]\nfind_backend('cpu')"
    assert set(loaded(code)) <= {"msgspec"}


def test_the_contracts_load_neither_torch_nor_sockets_nor_a_backend() -> None:
    found = loaded("import kvbridge.abc, kvbridge.config, kvbridge.errors, kvbridge.capabilities")
    assert set(found) <= {"msgspec", "numpy"}


@pytest.mark.parametrize("module", ["kvbridge.control.endpoint", "kvbridge.connector.handoff_worker"])
def test_the_core_imports_no_backend_and_no_engine(module: str) -> None:
    assert set(loaded(f"import {module}")) <= {"msgspec", "numpy", "zmq"}


def test_a_backend_is_imported_when_it_is_loaded_and_torch_is_not() -> None:
    found = loaded("from kvbridge.registry import *\ncreate_backend('cpu', {'capacity': '1MiB'}).close()")
    assert "kvbridge_cpu" in found
    assert not {"torch", "vllm", "kvbridge_vllm"} & set(found)
