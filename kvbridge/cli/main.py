"""`kvbridge`: list backends, check configurations, measure."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Literal

import click

from kvbridge.bench.policies import policies
from kvbridge.errors import KVBridgeError
from kvbridge.version import __version__


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kvbridge")
def main() -> None:
    """Move KV cache between LLM engines over any backend, never silently."""


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option("--no-probe", is_flag=True, help="Only list; do not try which backends work on this machine.")
def backends(*, as_json: bool, no_probe: bool) -> None:
    """List installed backends and whether they work on this machine.

    Exit code: 0; 1 when one is broken, which is more than that this machine lacks something, or when none works here.
    """
    from kvbridge.cli.backends import show  # noqa: PLC0415 - each command loads what it needs

    raise SystemExit(show(as_json=as_json, probe=not no_probe))


@main.command()
@click.argument("configs", nargs=-1, required=True, metavar="CONFIG [CONFIG]")
def check(configs: tuple[str, ...]) -> None:
    """Check one or two vLLM --kv-transfer-config values before an engine is started with them.

    CONFIG is a file, or the JSON text itself, or - for standard input. Of two, one is the prefill engine's and the
    other the decode engine's: they are checked against each other too.

    Exit code: 0 everything is right, 1 something is wrong, 2 it could not be read.
    """
    from kvbridge.cli.check import run  # noqa: PLC0415 - likewise

    raise SystemExit(run(configs))


@main.group()
def bench() -> None:
    """Measure."""


bench.add_command(policies)


@bench.command()
@click.argument("backends", nargs=-1, metavar="[BACKEND]...")
@click.option("--options", default="{}", show_default=True, help="JSON options, where there is one backend.")
@click.option("--rounds", default=9, show_default=True, type=click.IntRange(1), help="Interleaved rounds.")
@click.option(
    "--profile", default="quick", show_default=True, type=click.Choice(["quick", "nightly"]), help="How many cases."
)
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the report.")
@click.option("--html", "html_file", type=click.Path(dir_okay=False, path_type=Path), help="Write it as one page.")
def transfer(
    backends: tuple[str, ...],
    *,
    options: str,
    rounds: int,
    profile: str,
    json_file: Path | None,
    html_file: Path | None,
) -> None:
    """Hand values over between two processes, beside a memory copy, a socket and the raw library.

    Several backends are measured in one run, interleaved. Without any: cpu.

    Exit code: 0, 1 a hand-over failed, bytes were wrong or a file could not be written.
    """
    from kvbridge.bench.transfer import run  # noqa: PLC0415 - likewise

    if len(backends) > 1 and options != "{}":
        raise click.UsageError("--options is for one backend: measure the others with their default options, or apart")
    chosen = backends or ("cpu",)
    raise SystemExit(run(chosen, options, rounds, profile=profile, json_file=json_file, html_file=html_file))


@bench.command()
@click.argument("first", metavar="A.json", type=click.Path(path_type=Path))
@click.argument("second", metavar="B.json", type=click.Path(path_type=Path))
def compare(first: Path, second: Path) -> None:
    """Say what moved from one report of `kvbridge bench transfer --json` to another, beyond their noise.

    Exit code: 0 nothing got slower beyond noise, 1 something did, 2 a file cannot be read, or they have nothing in
    common.
    """
    from kvbridge.bench.compare import run  # noqa: PLC0415 - likewise

    raise SystemExit(run(first, second))


@bench.command()
@click.argument("names", nargs=-1, metavar="[CONNECTOR]...")
@click.option("--tokens", default="512,2048", show_default=True, help="Lengths of prompts.")
@click.option("--concurrent", default="1,8", show_default=True, help="Requests at a time.")
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1), help="Interleaved rounds.")
@click.option("--dtype", default="bfloat16", show_default=True, type=click.Choice(["bfloat16", "float16", "float32"]))
@click.option("--cache-gib", default=2, show_default=True, type=click.IntRange(1), help="KV cache of each engine.")
@click.option("--json", "json_file", metavar="FILE", help="Write the figures.")
def serve(
    names: tuple[str, ...],
    *,
    tokens: str,
    concurrent: str,
    rounds: int,
    dtype: str,
    cache_gib: int,
    json_file: str | None,
) -> None:
    """Hand requests over between real engines: time to first token and rate, for each connector in the same run.

    CONNECTOR is a backend, or vllm:NixlConnector, which is vLLM's own. Without any: cpu, nixl and vllm:NixlConnector.

    Exit code: 0, 1 an answer was wrong or an engine failed, 3 a connector cannot work here.
    """
    _need_vllm()
    from kvbridge_vllm.bench.run import run  # noqa: PLC0415 - each command loads what it needs

    chosen = names or ("cpu", "nixl", "vllm:NixlConnector")
    numbers = [_numbers("tokens", tokens), _numbers("concurrent", concurrent)]
    raise SystemExit(run(chosen, *numbers, rounds=rounds, dtype=dtype, cache_gib=cache_gib, json_file=json_file))


@bench.command()
@click.option("--engine/--no-engine", default=True, show_default=True, help="Start an engine too; takes minutes.")
@click.option("--tokens", default="512,2048,8192", show_default=True, help="Lengths of prompts for the engine.")
@click.option("--rounds", default=9, show_default=True, type=click.IntRange(1), help="Interleaved rounds.")
@click.option("--engine-rounds", default=3, show_default=True, type=click.IntRange(1), help="The engine's.")
@click.option("--json", "json_file", metavar="FILE", help="Write the figures.")
def reuse(*, engine: bool, tokens: str, rounds: int, engine_rounds: int, json_file: str | None) -> None:
    """Keep blocks and have them back: copies beside a plain one, lookups, time to first token beside computing.

    Exit code: 0, 1 an answer or a byte was wrong or the engine failed.
    """
    from kvbridge.bench.reuse import Part, run  # noqa: PLC0415 - each command loads what it needs
    from kvbridge.bench.reuse_copies import Copies  # noqa: PLC0415 - likewise
    from kvbridge.bench.reuse_lookups import Lookups  # noqa: PLC0415 - likewise

    parts: list[Part] = [Copies(rounds), Lookups(rounds)]
    lengths = _numbers("tokens", tokens)
    if engine:
        _need_vllm(", or say --no-engine")
        from kvbridge_vllm.bench.first_tokens import FirstTokens  # noqa: PLC0415 - likewise

        parts.append(FirstTokens(lengths, engine_rounds))
    raise SystemExit(run(parts, json_file))


def _need_vllm(otherwise: str = "") -> None:
    if importlib.util.find_spec("kvbridge_vllm") is None or importlib.util.find_spec("vllm") is None:
        raise click.UsageError(f"engines need vLLM: install it beside kvbridge{otherwise}")


def _numbers(name: str, text: str) -> list[int]:
    try:
        found = [int(one) for one in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise click.UsageError(f"--{name} {text!r}: expected numbers above 0 with commas between them, as 512,2048")
    return found


@main.group()
def demo() -> None:
    """Show what kvbridge does, on real engines."""


@demo.command("reuse")
@click.option("--model", metavar="DIR", help="Folder with a chat model.  [default: SmolLM2-135M-Instruct]")
def demo_reuse(model: str | None) -> None:
    """Ask five questions about a long document, with its KV kept for reuse and without.

    Exit code: 0, 1 a text differs, the document was computed again, or an engine failed, 130 interrupted.
    """
    _need_vllm()
    from kvbridge_vllm.demo.reuse import run  # noqa: PLC0415 - each command loads what it needs

    raise SystemExit(run(None if model is None else Path(model)))


@main.command(context_settings={"ignore_unknown_options": False})
@click.argument("names", nargs=-1, metavar="NAME [ID-PREFIX]... | compare A.json B.json...")
@click.option("--list", "only_list", is_flag=True, help="Print the requirements instead of running them.")
@click.option("--options", default="", metavar="JSON", help="Options of the backend, over those of its rig.")
@click.option("--strict", is_flag=True, help="Let a SHOULD count, and a requirement that cannot be run here.")
@click.option(
    "--peers",
    type=click.Choice(["auto", "process", "thread"]),
    default="auto",
    help="Where peers live; auto: processes where the backend reaches that far.",
)
@click.option("--junit", metavar="FILE", help="Write the report as JUnit XML.")
@click.option("--json", metavar="FILE", help="Write the report as JSON.")
@click.option("--html", metavar="FILE", help="Write the report as one page.")
@click.option("--waivers", metavar="FILE", help="Requirements that are known to fail: lines of 'id: reason'.")
@click.option("--timeout", default=60.0, type=click.FloatRange(0.1, 1e5), help="Seconds for one requirement.")
@click.option("--maxfail", default=0, type=click.IntRange(0), metavar="N", help="End after N failures that count.")
def conformance(
    names: tuple[str, ...],
    *,
    only_list: bool,
    options: str,
    strict: bool,
    peers: Literal["auto", "process", "thread"],
    junit: str | None,
    json: str | None,
    html: str | None,
    waivers: str | None,
    timeout: float,
    maxfail: int,
) -> None:
    """Test a backend against the contract, or compare reports of such tests.

    Exit code: 0 conforms, 1 a requirement failed, 2 wrong usage, 3 the backend is not available here; 128 and a
    signal's number when that ended the run: the reports then have what was known, and are marked incomplete.
    """
    from kvbridge.cli import conformance as command  # noqa: PLC0415 - each command loads what it needs
    from kvbridge.conformance.configuration import SuiteConfig, parse_options  # noqa: PLC0415 - likewise

    if importlib.util.find_spec("pytest") is None or importlib.util.find_spec("hypothesis") is None:
        raise click.UsageError("the suite needs pytest and hypothesis: pip install 'kvbridge[conformance]'")
    if names[:1] == ("compare",):
        raise SystemExit(command.compare_runs(names[1:], html))
    if only_list:
        raise SystemExit(command.list_contract(tuple(name for name in names if "/" in name)))
    if not names:
        raise click.UsageError("name a backend; `kvbridge backends` lists what is installed")
    try:
        config = SuiteConfig(
            backend=names[0],
            options=parse_options(options),
            peers=peers,
            prefixes=names[1:],
            strict=strict,
            waivers=None if waivers is None else Path(waivers),
            timeout=timeout,
            maxfail=maxfail,
        )
    except KVBridgeError as error:
        raise click.UsageError(str(error)) from error
    raise SystemExit(command.run_suite(config, json=json, junit=junit, html=html))


@main.command()
@click.argument("name")
@click.option(
    "--kind",
    type=click.Choice(["transport", "store"]),
    default="transport",
    show_default=True,
    help="A transport moves bytes between two processes; a store keeps values by key itself.",
)
@click.option("--to", metavar="DIR", help="Where to write it: a new or empty folder.  [default: kvbridge-NAME]")
def new_backend(name: str, kind: Literal["transport", "store"], to: str | None) -> None:
    """Write a project of your own: a backend NAME that passes the conformance suite as it is.

    Exit code: 0 written, 2 wrong usage; a file that exists is never overwritten.
    """
    from kvbridge.cli.new_backend import run  # noqa: PLC0415 - each command loads what it needs

    raise SystemExit(run(name, kind, to))


if __name__ == "__main__":
    main()
