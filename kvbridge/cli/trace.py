"""`kvbridge trace`: what happened to each hand-over, from the files that engines wrote."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from kvbridge.tracing import CATEGORY

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

FOUND, NOT_FOUND, UNREADABLE = 0, 1, 2

WORDS = {"b": "begins", "e": "ends", "n": ""}
MICRO = 1e-6


STAGES = (
    ("the scheduler checks the parameters", ("decode", "b"), ("claiming", "n")),
    ("the worker hears of the claim: the engine's next step", ("claiming", "n"), ("claim", "b")),
    ("the prefill engine is asked and offers the value", ("claim", "b"), ("claim", "e")),
    ("the scheduler hears of it: the engine's steps", ("claim", "e"), ("loading", "n")),
    ("the worker hears of the load: the engine's step", ("loading", "n"), ("fill", "b")),
    ("the bytes move, with the messages about it", ("fill", "b"), ("fill", "e")),
    ("the scheduler hears of the end: the engine's steps", ("fill", "e"), ("decode", "e")),
)
"""What comes after what in a decode request, with what begins and ends each stage."""


@dataclass
class _Life:
    """Events of one hand-over: those of its key, and of the requests that are about it."""

    names: set[str] = field(default_factory=set)
    events: list[dict[str, Any]] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return float(self.events[-1]["ts"] - self.events[0]["ts"]) * MICRO

    @property
    def requests(self) -> str:
        named = {str(event["id"]) for event in self.events if event["name"] in ("prefilled", "claiming", "decode")}
        return ", ".join(sorted(named))

    @property
    def outcome(self) -> str:
        """What became of it: what the decode engine said last, else the last word of the prefill engine."""
        decoded = [event for event in self.events if event["name"] == "decode" and event["ph"] == "e"]
        last = (decoded or self.events)[-1]
        facts = last["args"]
        said = facts.get("outcome") or facts.get("why") or ""
        return " ".join(filter(None, (said, facts.get("error", "")))) or f"last seen: {last['name']}"

    def stages(self) -> list[float] | None:
        """Seconds of each stage of a load; None where it is not whole, or took another way."""
        at = {(event["name"], event["ph"]): float(event["ts"]) for event in reversed(self.events)}
        spans = [(at.get(start), at.get(end)) for _, start, end in STAGES]
        found = [(end - start) * MICRO for start, end in spans if start is not None and end is not None]
        return found if len(found) == len(STAGES) and min(found) >= 0 else None


def run(folder: Path, name: str, json_file: Path | None) -> int:
    """Show the lives of all hand-overs, or that of one; write all events as one file. Return the exit code."""
    try:
        processes, events = read(folder)
    except OSError as error:
        print(f"{folder} cannot be read: {error.strerror}", file=sys.stderr)
        return UNREADABLE
    if not events:
        print(
            f'no events in {folder}: give engines "trace": "{folder}" in kv_connector_extra_config, and ask them',
            file=sys.stderr,
        )
        return UNREADABLE
    if json_file is not None:
        named = [
            {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": process}}
            for pid, process in processes.items()
        ]
        try:
            json_file.write_text(json.dumps([*named, *events]), encoding="utf-8")
        except OSError as error:
            print(f"{json_file} cannot be written: {error.strerror}", file=sys.stderr)
            return UNREADABLE
        print(f"{len(events)} events written to {json_file}: open it in chrome://tracing or ui.perfetto.dev")
    lives = gather(events)
    if not name:
        _show_all(lives)
        return FOUND
    for life in lives:
        if any(known == name or known.startswith(name) for known in life.names):
            _show(life, processes)
            return FOUND
    print(f"nothing is called {name!r}; `kvbridge trace {folder}` lists what there is", file=sys.stderr)
    return NOT_FOUND


def read(folder: Path) -> tuple[dict[int, str], list[dict[str, Any]]]:
    """Read every file of a folder: names of processes by pid, and events in order of time.

    Raises:
        OSError: It cannot be read.
    """
    processes: dict[int, str] = {}
    events: list[dict[str, Any]] = []
    if not folder.is_dir():
        raise NotADirectoryError(0, "it is no folder")
    for path in sorted(folder.glob("*.trace.json")):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                event = json.loads(line.rstrip(","))
            except ValueError:
                continue  # the bracket, or the last line of a process that was killed
            if not isinstance(event, dict):
                continue
            if event.get("ph") == "M":
                processes[event["pid"]] = event["args"]["name"]
            elif event.get("cat") == CATEGORY:
                events.append(event)
    return processes, sorted(events, key=lambda event: float(event["ts"]))


def gather(events: Sequence[dict[str, Any]]) -> list[_Life]:
    """Put events together that are about one value: by its key, and by requests that name it."""
    lives: list[_Life] = []
    by_name: dict[str, _Life] = {}
    for event in events:
        names = {str(event["id"]), str(event["args"].get("key", event["id"]))}
        known = [by_name[name] for name in sorted(names) if name in by_name]
        life = known[0] if known else _Life()
        if not known:
            lives.append(life)
        for other in known[1:]:
            if other is not life:
                life.events += other.events
                life.names |= other.names
                lives.remove(other)
        life.events.append(event)
        life.names |= names
        by_name.update(dict.fromkeys(life.names, life))
    for life in lives:
        life.events.sort(key=lambda event: float(event["ts"]))
    return lives


def _show_all(lives: Sequence[_Life]) -> None:
    table = Table("hand-over", "requests", "events", "seconds", "outcome", box=None, pad_edge=False)
    for life in lives:
        keys = sorted(name for name in life.names if name not in life.requests) or sorted(life.names)
        table.add_row(keys[0][:12], life.requests, str(len(life.events)), f"{life.seconds:.3f}", life.outcome)
    console = Console()
    console.print(table)
    loads = [stages for stages in (life.stages() for life in lives) if stages is not None]
    if loads:
        console.print(_stages(loads))


def _stages(loads: Sequence[list[float]]) -> Table:
    """Say where the time of loads goes: the median of each stage, and what nine in ten do not take longer than."""
    table = Table(f"stage of {len(loads)} loads", "ms", "nine in ten", box=None, pad_edge=False, title_justify="left")
    for (words, _, _), seconds in zip(STAGES, zip(*loads, strict=True), strict=True):
        ordered = sorted(seconds)
        ninth = ordered[min(len(ordered) - 1, len(ordered) * 9 // 10)]
        table.add_row(words, f"{median(ordered) * 1e3:.2f}", f"{ninth * 1e3:.2f}")
    return table


def _show(life: _Life, processes: dict[int, str]) -> None:
    table = Table("ms", "where", "what", "", "facts", box=None, pad_edge=False)
    start = float(life.events[0]["ts"])
    for event in life.events:
        facts = "  ".join(f"{key}={value}" for key, value in event["args"].items())
        where = processes.get(event["pid"], str(event["pid"]))
        milliseconds = f"{(float(event['ts']) - start) / 1e3:.2f}"
        table.add_row(milliseconds, where, event["name"], WORDS.get(event["ph"], ""), facts)
    Console().print(table)
