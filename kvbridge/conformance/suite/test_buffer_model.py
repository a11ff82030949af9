"""Part `buffer`, everything at once: any sequence of operations does what a dict would do, with faults in between."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import hypothesis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from kvbridge.conformance.checks import eventually, require, require_equal
from kvbridge.conformance.requirement import must
from kvbridge.conformance.values import TensorValue
from kvbridge.conformance.world import World
from kvbridge.errors import DuplicateKeyError, KeyMissError, TransportError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvbridge.abc import Key

EXAMPLES = 12
STEPS = 20
NAMES = [f"k{number}" for number in range(5)]
SIZES = (0, 1, 999, 4096, 300_000)
SHORT = 0.02
"""Seconds that an operation waits for a key that is not there."""

FAULTS = {"fail": 0.08, "delay": 0.1}
"""Share of a transport's steps that are struck."""


class Model(RuleBasedStateMachine):
    """A producer and a consumer beside a dict."""

    world_of: Callable[[], World]
    faulty = False

    def __init__(self) -> None:
        super().__init__()
        self.world = type(self).world_of()
        faults: dict[str, Any] = {"seed": 7, "rates": FAULTS}
        settings = {"faults": {"land": faults, "write": faults}} if self.faulty else {}
        self.producer = self.world.node(name="producer", **settings)
        self.consumer = self.world.node(name="consumer", **settings)
        self.live: dict[str, TensorValue] = {}
        self.gone: set[str] = set()
        self.count = 0

    # -- operations -------------------------------------------------------------------------------------------

    @rule(name=st.sampled_from(NAMES), size=st.sampled_from(SIZES))
    def insert(self, name: str, size: int) -> None:
        """Insert; a live key refuses it."""
        self.count += 1
        value = TensorValue(seed=self.count, shape=(min(size, self.world.largest()),))
        transfer = f"i{self.count}"
        self.producer.begin_insert(transfer, name, value)
        if name in self.live:
            require_equal(self.producer.await_over(transfer), DuplicateKeyError.code, f"a second insert of {name}")
            return
        if self.world.capabilities.detaches:
            self.producer.end(transfer)
        self.live[name] = value
        self.gone.discard(name)

    @rule(name=st.sampled_from(NAMES), takes=st.booleans(), far=st.booleans())
    def get(self, name: str, *, takes: bool, far: bool) -> None:
        """Select or take."""
        takes = takes and self.world.capabilities.takes
        one = self.consumer if far else self.producer
        self._get(name, takes, lambda value: one.take(self._key(name), value, *_verb(takes=takes), timeout=SHORT))

    @rule(name=st.sampled_from(NAMES), takes=st.booleans(), fills=st.booleans())
    def claim(self, name: str, *, takes: bool, fills: bool) -> None:
        """Claim, then fill or release."""
        takes = takes and self.world.capabilities.takes

        def both(value: TensorValue) -> None:
            self.consumer.claim("c", self._key(name), take=takes, timeout=SHORT)
            if fills:
                self.consumer.fill("c", value)
            else:
                self.consumer.release("c")
                self.consumer.flush()

        self._get(name, takes, both)

    @rule(name=st.sampled_from(NAMES), far=st.booleans())
    def drop(self, name: str, *, far: bool) -> None:
        """Drop here or from afar."""
        one = self.consumer if far else self.producer
        one.drop([self._key(name)])
        if self.live.pop(name, None) is not None:
            self.gone.add(name)
        eventually(lambda: not self._present([name])[0], 5, lambda: f"{name} is still there after it was dropped")

    @invariant()
    def keys_are_those_of_the_dict(self) -> None:
        """`contains` tells what the dict tells."""
        expected = [name in self.live for name in NAMES]
        eventually(
            lambda: self._present(NAMES) == expected, 5, lambda: f"keys {self._present(NAMES)}, expected {expected}"
        )

    def teardown(self) -> None:
        """Take what is left, then close."""
        for name in list(self.live):
            self.get(name=name, takes=True, far=True)
        self.world.close()

    # -- inside -----------------------------------------------------------------------------------------------

    def _get(self, name: str, takes: bool, call: Callable[[TensorValue], object]) -> None:  # noqa: FBT001 - short
        value = self.live.get(name, TensorValue(seed=0, shape=(10,)))
        try:
            call(value)
        except KeyMissError as error:
            require(name not in self.live, f"{name} is live, and asking for it said {error}")
        except TransportError as error:
            require(self.faulty, f"no fault was injected, and {name} failed with {error}")
        else:
            require(name in self.live, f"{name} is not live, and asking for it gave a value")
        if takes and self.live.pop(name, None) is not None:
            self.gone.add(name)

    def _key(self, name: str) -> Key:
        return self.world.key(name, self.producer)

    def _present(self, names: list[str]) -> list[bool]:
        return self.consumer.contains([self._key(name) for name in names])


def _verb(*, takes: bool) -> tuple[str]:
    return ("drop_select" if takes else "select",)


def _run(world: World, *, faulty: bool) -> None:
    machine = type("Model", (Model,), {"world_of": lambda: World(world.subject), "faulty": faulty})
    settings = hypothesis.settings(
        max_examples=EXAMPLES,
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(hypothesis.HealthCheck),
        print_blob=False,
    )
    run_state_machine_as_test(machine, settings=settings)


@must("buffer/40-model", needs=("buffer", "tensors"))
def test_model(world: World) -> None:
    """Any sequence of inserts, selects, takes, claims and drops does what a dict does."""
    _run(world, faulty=False)


@must("buffer/41-model-with-faults", needs=("buffer", "tensors"), transport=True)
def test_model_with_faults(world: World) -> None:
    """The same when steps of transfers fail and come late: a value is right, or its transfer says that it failed."""
    _run(world, faulty=True)
