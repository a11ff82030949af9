"""What several commands ask of their arguments and of this machine, as errors of usage."""

from __future__ import annotations

import importlib.util

import click


def need_vllm(otherwise: str = "") -> None:
    """Raise a usage error where engines cannot be started; `otherwise` is the way out."""
    if importlib.util.find_spec("kvbridge_vllm") is None or importlib.util.find_spec("vllm") is None:
        raise click.UsageError(f"engines need vLLM: install it beside kvbridge{otherwise}")


def numbers(name: str, text: str) -> list[int]:
    """Return the numbers of an option such as 512,2048; raises a usage error."""
    try:
        found = [int(one) for one in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise click.UsageError(f"--{name} {text!r}: expected numbers above 0 with commas between them, as 512,2048")
    return found
