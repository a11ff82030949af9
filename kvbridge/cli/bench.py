"""`kvbridge bench`: its commands and their options; each loads what it runs only when it is called."""

from __future__ import annotations

from pathlib import Path

import click

from kvbridge.bench.policies import policies
from kvbridge.cli.usage import need_vllm, numbers


@click.group()
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
    from kvbridge.bench.transfer import run  # noqa: PLC0415 - each command loads what it needs

    if len(backends) > 1 and options != "{}":
        raise click.UsageError("--options is for one backend: measure the others with their default options, or apart")
    chosen = backends or ("cpu",)
    raise SystemExit(run(chosen, options, rounds, profile=profile, json_file=json_file, html_file=html_file))


@bench.command()
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1), help="Interleaved rounds.")
@click.option(
    "--profile",
    default="quick",
    show_default=True,
    type=click.Choice(["quick", "nightly", "scale"]),
    help="How many keys and peers; nightly: up to 1 M keys; scale: 1,000 peers with 10 M keys.",
)
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the report.")
@click.option("--html", "html_file", type=click.Path(dir_okay=False, path_type=Path), help="Write it as one page.")
def buffer(*, rounds: int, profile: str, json_file: Path | None, html_file: Path | None) -> None:
    """Insert, look up, take, drop and expire keys, beside many keys, and with up to 1,000 simulated peers.

    Nothing is moved: what is measured is the control plane.

    Exit code: 0, 1 an operation failed or a file could not be written.
    """
    from kvbridge.bench.buffer.run import run  # noqa: PLC0415 - likewise

    raise SystemExit(run(profile, rounds, json_file=json_file, html_file=html_file))


@bench.command()
@click.argument("first", metavar="A.json", type=click.Path(path_type=Path))
@click.argument("second", metavar="B.json", type=click.Path(path_type=Path))
def compare(first: Path, second: Path) -> None:
    """Say what moved from one report to another one of the same benchmark, beyond their noise.

    Reports are what `kvbridge bench transfer`, `serve` and `buffer` write with --json.

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
@click.option("--options", default="{}", show_default=True, help="JSON: options for backends by name.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the report.")
@click.option("--html", "html_file", type=click.Path(dir_okay=False, path_type=Path), help="Write it as one page.")
def serve(
    names: tuple[str, ...],
    *,
    tokens: str,
    concurrent: str,
    rounds: int,
    dtype: str,
    cache_gib: int,
    options: str,
    json_file: Path | None,
    html_file: Path | None,
) -> None:
    """Hand requests over between real engines: time to first token and rate, for each connector in the same run.

    CONNECTOR is a backend, or vllm:NixlConnector, which is vLLM's own. Without any: cpu, nixl and vllm:NixlConnector.

    A backend with a pool has room for some values at a time, and the others wait for it:
    --options '{"cpu": {"capacity": "9GiB"}}' holds 32 prompts of 8,192 tokens.

    Exit code: 0, 1 an answer was wrong, an engine failed or a file could not be written, 3 a connector cannot work
    here.
    """
    need_vllm()
    from kvbridge_vllm.bench.run import run  # noqa: PLC0415 - likewise

    chosen = names or ("cpu", "nixl", "vllm:NixlConnector")
    raise SystemExit(
        run(
            chosen,
            numbers("tokens", tokens),
            numbers("concurrent", concurrent),
            rounds=rounds,
            dtype=dtype,
            cache_gib=cache_gib,
            options=options,
            json_file=json_file,
            html_file=html_file,
        )
    )


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
    lengths = numbers("tokens", tokens)
    if engine:
        need_vllm(", or say --no-engine")
        from kvbridge_vllm.bench.first_tokens import FirstTokens  # noqa: PLC0415 - likewise

        parts.append(FirstTokens(lengths, engine_rounds))
    raise SystemExit(run(parts, json_file))
