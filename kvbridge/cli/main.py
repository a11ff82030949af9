"""`kvbridge`: list backends, check configurations, measure."""

from __future__ import annotations

import click

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

    Exit code: 0, or 1 when a backend that was found cannot work here.
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


@bench.command()
@click.argument("backend", default="cpu")
@click.option("--options", default="{}", show_default=True, help="JSON options of the backend.")
@click.option("--rounds", default=9, show_default=True, help="Interleaved rounds; medians are printed.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def transfer(backend: str, options: str, rounds: int, *, as_json: bool) -> None:
    """Hand values over between two processes, beside a plain memory copy in the same run."""
    from kvbridge.bench.transfer import run  # noqa: PLC0415 - likewise

    raise SystemExit(run(backend, options, rounds, as_json=as_json))


if __name__ == "__main__":
    main()
