"""Run the test of a requirement with a deadline. A hang is a failure that names its requirement."""

from __future__ import annotations

import sys
import threading
import traceback
import unittest
from typing import TYPE_CHECKING

import pytest

from kvbridge.conformance.checks import RequirementError
from kvbridge.conformance.resources import own_temporary_folder
from kvbridge.conformance.world import World
from kvbridge.threads import call_within

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvbridge.conformance.world import Subject


_ENDS = (pytest.exit.Exception, unittest.SkipTest)
"""Errors by which a run of pytest is told to end or to skip a test, beside those that are no `Exception`."""


class HangError(RequirementError):
    """A test did not end in time."""


def run_test(name: str, test: Callable[[World], None], subject: Subject, timeout: float) -> None:
    """Run a test, then close everything that it made.

    Raises:
        HangError: It did not end within `timeout` seconds; the message says where it stands.
        RequirementError: It found a fault.
    """
    __tracebackhide__ = True
    world = World(subject)

    def run() -> None:
        try:
            test(world)
        except BaseException as error:
            try:
                world.close()
            except RequirementError as more:
                error.add_note(str(more))  # the test's own fault counts; this is shown beside it
            if isinstance(error, Exception) and not isinstance(error, _ENDS):
                raise
            what = f"the backend raised {type(error).__name__}: {error}".strip(": ")
            raise RequirementError(f"{what}; to end a run or to skip a test is not up to it") from error
        world.close()

    thread = f"conformance-{name}"
    with own_temporary_folder():
        ended, _ = call_within(thread, run, timeout)
    if not ended:
        raise HangError(f"{name} did not end within {timeout:g} s; it stands at {_stack(thread)}")


def _stack(name: str) -> str:
    """Return where a thread stands, its innermost calls first."""
    for thread in threading.enumerate():
        frame = sys._current_frames().get(thread.ident or 0)  # noqa: SLF001 - the only way to see another thread
        if thread.name == f"kvbridge-{name}" and frame is not None:
            return "".join(reversed(traceback.format_stack(frame)[-6:])).strip()
    return "its end: it has ended meanwhile"
