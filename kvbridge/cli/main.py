"""`kvbridge`: list backends, check configurations, measure."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Literal

import click

from kvbridge.cli.bench import bench
from kvbridge.cli.usage import need_vllm
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


main.add_command(bench)


@main.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.argument("name", required=False, default="", metavar="[NAME]")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write one Chrome trace.")
def trace(folder: Path, name: str, json_file: Path | None) -> None:
    """Say what happened to each hand-over, or to one of them, step by step in every engine.

    DIR is what "trace" names in kv_connector_extra_config of the engines. NAME is a key or a request's id, or how one
    of them begins.

    Exit code: 0, 1 nothing has that name, 2 there are no events, or a file cannot be read or written.
    """
    from kvbridge.cli.trace import run  # noqa: PLC0415 - each command loads what it needs

    raise SystemExit(run(folder, name, json_file))


@main.group()
def demo() -> None:
    """Show what kvbridge does, on real engines."""


@demo.command("reuse")
@click.option("--model", metavar="DIR", help="Folder with a chat model.  [default: SmolLM2-135M-Instruct]")
def demo_reuse(model: str | None) -> None:
    """Ask five questions about a long document, with its KV kept for reuse and without.

    Exit code: 0, 1 a text differs, the document was computed again, or an engine failed, 130 interrupted.
    """
    need_vllm()
    from kvbridge_vllm.demo.reuse import run  # noqa: PLC0415 - each command loads what it needs

    raise SystemExit(run(None if model is None else Path(model)))


@main.command()
@click.argument("backend", default="cpu", metavar="[BACKEND]")
@click.option("--seed", type=click.IntRange(0), metavar="N", help="Of everything that happens.  [default: random]")
@click.option("--requests", default=200, show_default=True, type=click.IntRange(1), help="How many are sent.")
@click.option(
    "--policy",
    type=click.Choice(["recompute", "fail"]),
    default="recompute",
    show_default=True,
    help="What engines do when loading fails midway: vLLM's kv_load_failure_policy.",
)
@click.option("--options", default="", metavar="JSON", help="Options of the backend.")
@click.option("--json", "json_file", metavar="FILE", help="Write what happened.")
def chaos(backend: str, *, seed: int | None, requests: int, policy: str, options: str, json_file: str | None) -> None:
    """Kill, stop and cut off engines under load, and see whether the promise holds.

    Two prefill engines, two decode engines and vllm-router serve while a schedule made of the seed strikes: kills and
    restarts, stops, control messages that are late or lost. At the end every answer has to have been right or an
    explicit error, and nothing may be held or left. Takes some minutes.

    Exit code: 0 the promise held, 1 it was broken, or an engine did not start, 3 the backend cannot work here, 130
    interrupted.
    """
    need_vllm()
    from kvbridge.conformance.configuration import parse_options  # noqa: PLC0415 - each command loads what it needs
    from kvbridge_vllm.chaos.run import run  # noqa: PLC0415 - likewise

    try:
        found = parse_options(options)
    except KVBridgeError as error:
        raise click.UsageError(str(error)) from error
    raise SystemExit(run(backend, found, seed=seed, requests=requests, policy=policy, json_file=json_file))


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
