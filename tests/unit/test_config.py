"""Configuration is converted once: what is unknown or of the wrong type is refused with its path and a hint."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbridge.config import ConnectorConfig, connector_config, convert, nearest, parse_bytes
from kvbridge.errors import ConfigError, KVBridgeError
from kvbridge_cpu import CpuBackend, CpuOptions

PATH = "kv_connector_extra_config"


class Inner(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    size: int = 1


class Outer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    inner: Inner = Inner()
    words: tuple[str, ...] = ()


def test_right_values_become_a_frozen_struct() -> None:
    found = convert(Outer, {"name": "a", "inner": {"size": 3}, "words": ["x"]}, "o")
    assert found == Outer("a", Inner(3), ("x",))
    with pytest.raises(AttributeError):
        found.name = "b"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ({"nam": "a"}, ["o.nam", "unknown", "did you mean 'name'", "inner, name, words"]),
        ({"name": "a", "zzz": 1}, ["o.zzz", "unknown", "Known: inner"]),
        ({"name": "a", 5: 1}, ["o.5", "unknown"]),
        ({}, ["o", "missing", "`name`"]),
        ({"name": 1}, ["o.name", "expected `str`, got `int`"]),
        ({"name": None}, ["o.name", "expected `str`"]),
        ({"name": "a", "inner": {"size": "3"}}, ["o.inner.size", "expected `int`, got `str`"]),
        ({"name": "a", "inner": {"size": True}}, ["o.inner.size", "expected `int`"]),
        ({"name": "a", "inner": {"sise": 3}}, ["o.inner", "sise"]),
        ({"name": "a", "words": ["x", 2]}, ["o.words[1]", "expected `str`"]),
        (None, ["o", "NoneType", "expected an object"]),
        ("name", ["o", "str", "expected an object"]),
        ([("name", "a")], ["o", "list", "expected an object"]),
    ],
)
def test_what_is_wrong_is_refused_with_path_and_expectation(values: Any, parts: list[str]) -> None:
    with pytest.raises(ConfigError) as found:
        convert(Outer, values, "o")
    for part in parts:
        assert part in str(found.value)


def test_a_misspelt_option_of_a_nested_struct_gets_the_nearest_name_too() -> None:
    with pytest.raises(ConfigError, match=r"o\.inner\.sise.*did you mean 'size'"):
        convert(Outer, {"name": "a", "inner": {"sise": 3}}, "o")


def test_the_nearest_name_is_offered_only_if_it_is_near() -> None:
    assert nearest("bakend", ["backend", "lease"]) == "did you mean 'backend'? Known: backend, lease"
    assert nearest("zzzzz", ["backend"]) == "Known: backend"
    assert nearest("x", []) == "Known: none"


def test_the_connectors_defaults_are_those_that_the_documentation_names() -> None:
    config = connector_config({"backend": "cpu"})
    assert (config.host, config.port, config.options, config.model_id) == ("127.0.0.1", 0, {}, "")
    assert (config.lease, config.claim_timeout, config.transfer_timeout) == (60.0, 5.0, 30.0)


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({}, rf"{PATH}\.backend: missing; name a backend"),
        ({"options": {"capacity": 1}}, rf"{PATH}\.backend: missing"),
        ({"handoff": {"backend": "cpu"}, "backend": "cpu"}, rf"{PATH}\.backend: beside handoff and reuse"),
        ({"handoff": {"backend": "cpu"}, "options": {"a": 1}}, rf"{PATH}\.options: without backend"),
        ({"handoff": {"backnd": "cpu"}}, rf"{PATH}\.handoff\.backnd: unknown option; did you mean 'backend'\?"),
        ({"handoff": {}}, rf"{PATH}\.handoff: .*`backend`"),
        ({"reuse": []}, rf"{PATH}\.reuse: found an empty list"),
        ({"reuse": 5}, rf"{PATH}\.reuse: found int, expected an object"),
        ({"reuse": {"capcity": 1}}, rf"{PATH}\.reuse\.capcity: unknown option; did you mean 'capacity'\?"),
        ({"reuse": [{}, {"backend": "files", "polcy": 1}]}, rf"{PATH}\.reuse\[1\]\.polcy: unknown option"),
        ({"reuse": [{}, {"options": {}}]}, rf"{PATH}\.reuse\[1\]\.backend: missing"),
        ({"reuse": [{}, {"backend": "files", "capacity": 1}]}, rf"{PATH}\.reuse\[1\]\.capacity: .* first tier only"),
        ({"reuse": {"exclusive": True}}, rf"{PATH}\.reuse\.exclusive: .* below the first only"),
        ({"room": "much"}, rf"{PATH}\.room: found 'much'"),
        ({"reuse": [{}, {"backend": "files", "timeout": float("nan")}]}, rf"{PATH}\.reuse\[1\]\.timeout: found nan"),
        ({"reuse": [{}, {"backend": "files", "retry": 1e300}]}, rf"{PATH}\.reuse\[1\]\.retry: found 1e\+300"),
        ({"reuse": {"min_tokens": 0}}, rf"{PATH}\.reuse\.min_tokens: found 0, expected 1"),
        ({"reuse": {"share": True, "policy": "arc"}}, rf"{PATH}\.reuse\.policy: found 'arc'"),
        ({"reuse": [{"share": True}, {"backend": "f", "exclusive": True}]}, rf"{PATH}\.reuse\.exclusive"),
        ({"backend": 1}, rf"{PATH}\.backend: expected `str`"),
        ({"backend": "cpu", "laese": 5}, rf"{PATH}\.laese: unknown option; did you mean 'lease'\?"),
        ({"backend": "cpu", "port": -1}, rf"{PATH}\.port: found -1, expected 0 to 65535"),
        ({"backend": "cpu", "port": 65536}, rf"{PATH}\.port"),
        ({"backend": "cpu", "port": "80"}, rf"{PATH}\.port: expected `int`"),
        ({"backend": "cpu", "lease": 0}, rf"{PATH}\.lease: found 0"),
        ({"backend": "cpu", "lease": float("nan")}, rf"{PATH}\.lease: found nan"),
        ({"backend": "cpu", "lease": float("inf")}, rf"{PATH}\.lease: found inf"),
        ({"backend": "cpu", "claim_timeout": -5.0}, rf"{PATH}\.claim_timeout"),
        ({"backend": "cpu", "transfer_timeout": 1e9}, rf"{PATH}\.transfer_timeout"),
        ({"backend": "cpu", "options": []}, rf"{PATH}\.options: expected `object`"),
    ],
)
def test_a_connectors_option_that_is_wrong_is_refused(values: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        connector_config(values)


@given(st.dictionaries(st.sampled_from([*ConnectorConfig.__struct_fields__, "x"]), st.none() | st.text() | st.floats()))
def test_no_values_raise_anything_else(values: dict[str, Any]) -> None:
    found = ""
    try:
        connector_config(values)
    except ConfigError as error:
        found = str(error)
    assert not found or found.startswith(PATH)


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        (0, 0),
        (12345, 12345),
        ("0", 0),
        ("4096", 4096),
        ("1B", 1),
        ("1KiB", 1 << 10),
        ("1MiB", 1 << 20),
        ("4GiB", 4 << 30),
        ("2TiB", 2 << 40),
        ("1KB", 1000),
        ("1 mb", 10**6),
        ("3gb", 3 * 10**9),
        ("1TB", 10**12),
        ("1.5GiB", 3 << 29),
        ("0.5 KiB", 512),
        (" 7MiB ", 7 << 20),
        ("9007199254740993", (1 << 53) + 1),
    ],
)
def test_sizes_are_read_exactly(text: int | str, nbytes: int) -> None:
    assert parse_bytes(text, "capacity") == nbytes


@pytest.mark.parametrize(
    "text", ["", "GiB", "-1", -1, True, "1XiB", "1 GiB 2", "0x10", "1e9", "nan", "inf", "1,5GiB", "1..5", "9" * 400]
)
def test_what_is_no_size_is_refused_with_its_path(text: Any) -> None:
    with pytest.raises(ConfigError, match="capacity"):
        parse_bytes(text, "capacity")


@given(st.text() | st.integers() | st.from_regex(r"\d+(\.\d+)?\s*[KMGTkmgt]?[iI]?[bB]?", fullmatch=True))
def test_no_text_makes_the_cpu_backends_probe_raise(capacity: str | int) -> None:
    try:
        size = parse_bytes(capacity, "options.capacity")
    except KVBridgeError:
        size = -1
    probe = CpuBackend.probe(CpuOptions(capacity=capacity))
    assert not probe.ok or size > 0
    assert probe.ok or "options.capacity" in probe.reason


@pytest.mark.parametrize(
    ("values", "handoff", "reuse"),
    [
        ({"backend": "cpu"}, "cpu", []),
        ({"backend": "cpu", "reuse": {"capacity": "8GiB", "policy": "lru"}}, None, ["cpu"]),
        ({"reuse": {"capacity": "8GiB"}}, None, ["cpu"]),
        ({"handoff": {"backend": "nixl"}, "reuse": {"backend": "cpu"}}, "nixl", ["cpu"]),
        ({"reuse": [{"backend": "cpu"}, {"backend": "files"}, {"backend": "mooncake-store"}]}, None, None),
    ],
)
def test_the_flows_that_are_asked_for(values: dict[str, Any], handoff: str | None, reuse: list[str] | None) -> None:
    config = connector_config(values)
    assert (config.handoff.backend if config.handoff else None) == handoff
    assert [tier.backend for tier in config.reuse] == (reuse or [tier["backend"] for tier in values.get("reuse", [])])


def test_the_options_beside_backend_are_those_of_the_flow_that_it_names() -> None:
    options = {"capacity": "1MiB"}
    handed = connector_config({"backend": "cpu", "options": options})
    kept = connector_config({"backend": "cpu", "options": options, "reuse": {}})
    assert handed.handoff is not None
    assert handed.handoff.options == options
    assert kept.reuse[0].options == options


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.5", "::", "engine.example"])  # noqa: S104 - nothing is bound
def test_a_port_that_others_reach_needs_a_secret_or_a_word(host: str) -> None:
    with pytest.raises(ConfigError, match=r"host: other machines reach .* secret_file .* \"insecure\": true"):
        connector_config({"backend": "cpu", "host": host})
    assert connector_config({"backend": "cpu", "host": host, "insecure": True}).host == host
    assert connector_config({"backend": "cpu", "host": host, "secret_file": "/a/file"}).host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_needs_none(host: str) -> None:
    assert connector_config({"backend": "cpu", "host": host}).host == host
