"""What KV depends on beside its tokens: the weights that an engine has, and what a request brings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from kvbridge_vllm.weights import SAMPLE_BYTES, weights_digest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    (tmp_path / "model.safetensors").write_bytes(os.urandom(1 << 20))
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


def test_equal_weights_have_one_digest_wherever_and_whenever_they_lie(weights: Path, tmp_path_factory: Any) -> None:
    other = tmp_path_factory.mktemp("other")
    (other / "model.safetensors").write_bytes((weights / "model.safetensors").read_bytes())
    os.utime(other / "model.safetensors", (1, 1))
    assert weights_digest(other) == weights_digest(weights)


@pytest.mark.parametrize("where", [0, SAMPLE_BYTES - 1, (1 << 20) - 1])
def test_changed_weights_have_another(weights: Path, where: int) -> None:
    before = weights_digest(weights)
    path = weights / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[where] ^= 1
    path.write_bytes(content)
    assert weights_digest(weights) != before


def test_weights_that_were_trained_further_differ_at_a_sample(weights: Path) -> None:
    before = weights_digest(weights)
    (weights / "model.safetensors").write_bytes(os.urandom(1 << 20))
    after = weights_digest(weights)
    (weights / "second.safetensors").write_bytes(b"")
    assert len({before, after, weights_digest(weights)}) == 3


PROGRAM = """
import json, sys
from types import SimpleNamespace as Some
import torch
from kvbridge.errors import UnsupportedError
from kvbridge.reuse.keys import namespace, narrowed
from kvbridge_vllm.identity import reuse_dimensions

folder = sys.argv[1]

def space(**fields):
    plain = dict(num_prompt_tokens=64, mm_features=[], lora_request=None, cache_salt=None, prompt_embeds=None)
    return narrowed(namespace({}, ""), reuse_dimensions(Some(**{**plain, **fields}))).hex()

adapter = Some(lora_name="a", lora_path=folder, lora_int_id=1)
said = {"plain": space(), "salted": space(cache_salt="s"), "adapter": space(lora_request=adapter)}
said["again"] = space(lora_request=adapter)
open(folder + "/adapter_model.safetensors", "w").write("another one")
said["replaced"] = space(lora_request=adapter)
try:
    space(prompt_embeds=torch.zeros(64, 8), _prompt_embeds_per_block_hashes={})
except UnsupportedError as error:
    said["embeds"] = str(error)
print(json.dumps(said))
"""


def test_what_a_request_brings_is_in_its_names(tmp_path: Path) -> None:
    (tmp_path / "adapter_model.safetensors").write_text("one")
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["adapter"] == said["again"]
    assert len({said[name] for name in ("plain", "salted", "adapter", "replaced")}) == 4
    assert "prompt_embeds" in said["embeds"]
