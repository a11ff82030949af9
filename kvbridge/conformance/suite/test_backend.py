"""Part `backend`: what an instance is, before any peer comes."""

from __future__ import annotations

import itertools
import random
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import msgspec

from kvbridge.abc import Backend, Store, Transport
from kvbridge.capabilities import Capabilities, Mover, Probe
from kvbridge.config import convert
from kvbridge.conformance.checks import RequirementError, require, require_equal, require_raises, within
from kvbridge.conformance.requirement import must
from kvbridge.conformance.resources import grown_each_time
from kvbridge.errors import ConfigError
from kvbridge.registry import create_backend

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvbridge.conformance.world import World

T = TypeVar("T")

MAX_CARD = 64 << 10
CLOSE = 2.0
CYCLES = 10


def _make(world: World) -> Backend[Any]:
    return create_backend(world.subject.name, world.subject.options)


@must("backend/01-made")
def test_made(world: World) -> None:
    """A backend whose probe says that it works can be made, and its capabilities stay the same over its life."""
    backend = _make(world)
    try:
        first = backend.capabilities
        backend.card()
        require_equal(backend.capabilities, first, "the capabilities of one instance, asked again")
        require_equal(first, world.capabilities, "the capabilities of another instance with the same options")
    finally:
        backend.close()


@must("backend/02-names")
def test_names(world: World) -> None:
    """The class has the entry point's name, and its options are a frozen struct whose every field has a default."""
    cls = world.subject.load()
    require_equal(cls.name, world.subject.name, "the class attribute `name`")
    require(cls.Options.__struct_config__.frozen, f"{cls.Options.__name__} is not frozen: declare it with frozen=True")
    without = [f.name for f in msgspec.structs.fields(cls.Options) if f.required]
    require(not without, f"options without a default: {', '.join(without)}")


@must("backend/03-options")
def test_options(world: World) -> None:
    """An option that does not exist is refused with ConfigError, and so is one of the wrong type."""
    cls = world.subject.load()
    require_raises(ConfigError, lambda: convert(cls.Options, {"no_such_option": 1}, "options"), "an unknown option")
    for field in msgspec.structs.fields(cls.Options):
        wrong = {field.name: object()}
        require_raises(ConfigError, partial(convert, cls.Options, wrong, "options"), field.name)


@must("backend/04-probe")
def test_probe(world: World) -> None:
    """Its probe says why in a sentence, raises for no value of its options, and leaves nothing behind."""
    cls = world.subject.load()
    options = convert(cls.Options, world.subject.options, "options")
    cls.probe(options)

    def probe() -> None:
        found = cls.probe(options)
        require(isinstance(found, Probe), f"probe returned {found!r}, expected a Probe")
        require(found.ok and found.reason, f"probe said {found}, expected ok with what it found")

    slack = {"resident": 8 << 20, "shared": CYCLES // 2, "files": CYCLES // 2}
    require_equal(grown_each_time(probe, slack, CYCLES), {}, f"after {CYCLES} probes")
    for changed in _odd_options(cls.Options, options):
        found = _calm(partial(cls.probe, changed), f"probe({changed})")
        require(isinstance(found, Probe) and found.reason, f"probe({changed}) returned {found!r}")


def _calm(call: Callable[[], T], what: str) -> T:
    """Make a call that may not raise."""
    try:
        return call()
    except Exception as error:
        raise RequirementError(f"{what} raised {error!r}, expected an answer") from error


def _odd_options(kind: type[msgspec.Struct], options: msgspec.Struct) -> list[msgspec.Struct]:
    """Options with values of the right type and no sense."""
    odd = []
    for field in msgspec.structs.fields(kind):
        for value in (0, -1, 1 << 62, 1.5, "", "no such thing", "\x00", True, None):
            try:
                odd.append(convert(kind, {**msgspec.structs.asdict(options), field.name: value}, "options"))
            except ConfigError:
                continue
    return odd


@must("backend/05-flags-known")
def test_flags_known(world: World) -> None:
    """Capabilities are of the contract's own type: a flag that the contract does not know is no capability."""
    backend = _make(world)
    found = backend.capabilities
    backend.close()
    extra = sorted(set(getattr(found, "__struct_fields__", ())) - set(Capabilities.__struct_fields__))
    require(type(found) is Capabilities, f"found {type(found).__name__} with {extra}, expected Capabilities itself")
    require_equal(
        msgspec.convert(msgspec.to_builtins(found), Capabilities), found, "the capabilities, encoded and decoded"
    )


@must("backend/06-flags-agree")
def test_flags_agree(world: World) -> None:
    """Flags agree with each other and with what the class has: what is claimed is there, what is there is claimed."""
    claimed = world.capabilities
    cls = world.subject.load()
    require(claimed.pipe or claimed.buffer, "neither pipe nor buffer is claimed: nobody could use this backend")
    require(claimed.tensors or claimed.pages, "neither tensors nor pages is claimed: there is nothing to move")
    require(claimed.mover in get_args(Mover), f"mover is {claimed.mover!r}, expected one of {get_args(Mover)}")
    require(not claimed.cross_host or claimed.cross_process, "cross_host is claimed and cross_process is not")
    require(claimed.max_value_bytes >= 0 and claimed.capacity_bytes >= 0, "a limit is negative")
    require(
        not claimed.capacity_bytes or claimed.max_value_bytes <= claimed.capacity_bytes,
        "max_value_bytes is above capacity_bytes",
    )
    pipes = "open_send" in _own(cls) or issubclass(cls, Transport)
    require(claimed.pipe == pipes, f"pipe is {claimed.pipe}, and open_send is {'there' if pipes else 'not there'}")
    require(not claimed.slots or cls.open_pool is not Backend.open_pool, "slots is claimed, and open_pool is not there")
    if issubclass(cls, Transport):
        missing = [flag for flag in ("buffer", "takes", "tombstones") if not getattr(claimed, flag)]
        require(not missing, f"a transport's buffers are the core's: claim {', '.join(missing)} too")
        require(not claimed.shared, "a transport's values end with their producer: shared is not true")
    if issubclass(cls, Store):
        require(claimed.buffer, "a store has a buffer: claim it")


def _own(cls: type) -> set[str]:
    """Names that a class or one of its bases defines below `Backend`."""
    return {name for base in cls.__mro__ if base.__module__ != Backend.__module__ for name in vars(base)}


@must("backend/07-card")
def test_card(world: World) -> None:
    """A card is bytes, at most 64 KiB, and the same over an instance's life."""
    backend = _make(world)
    try:
        card = backend.card()
        require(isinstance(card, bytes) and len(card) <= MAX_CARD, f"found {type(card).__name__} of {len(card)} bytes")
        require_equal(backend.card(), card, "the card, asked again")
    finally:
        backend.close()


@must("backend/08-accepts-its-like")
def test_accepts_its_like(world: World) -> None:
    """Two instances with the same options accept each other's cards."""
    one, other = _make(world), _make(world)
    try:
        require_equal(one.accepts(other.card()), None, "what one says to the other's card")
        require_equal(other.accepts(one.card()), None, "what the other says to the first one's card")
    finally:
        one.close()
        other.close()


@must("backend/09-accepts-nonsense")
def test_accepts_nonsense(world: World) -> None:
    """A card that is nonsense is answered with a reason: nothing is raised, nothing hangs, no process dies."""
    backend = _make(world)
    try:
        card = backend.card()
        random_bytes = random.Random(1).randbytes  # noqa: S311 - the same every time
        nonsense = [b"\x00" * 64, b"\xff" * 64, random_bytes(1000), random_bytes(MAX_CARD), b"{}", b"\x80"]
        nonsense += [card[: len(card) // 2], card + b"\x00", card[:-1] + bytes([card[-1] ^ 1])] if card else []
        for one in nonsense:
            reason = within(10, partial(_calm, partial(backend.accepts, one), "accepts"), "accepts")
            require(reason is None or isinstance(reason, str), f"accepts returned {reason!r}, expected a reason")
            if card and one in nonsense[:6]:
                require(reason, f"accepts took {one[:20]!r} for a card")
    finally:
        backend.close()


@must("backend/10-close")
def test_close(world: World) -> None:
    """Close ends within two seconds, may be called again, and also before anything was done."""
    unused = _make(world)
    _closes(unused, "an instance that did nothing")
    _closes(unused, "it again")
    node = world.node()
    node.close()
    _closes(node.backend, "an instance that was in use")
    _closes(node.backend, "it again")


def _closes(backend: Backend[Any], what: str) -> None:
    within(CLOSE, partial(_calm, backend.close, f"closing {what}"), f"closing {what}")


@must("backend/11-nothing-left", needs=("buffer", "tensors"))
def test_nothing_left(world: World) -> None:
    """After close nothing is left: no thread, descriptor, child, memory, file in /dev/shm or temporary file."""
    numbers = itertools.count()

    def cycle() -> None:
        number = next(numbers)
        one, other = world.node(name="one"), world.node(name="other")
        value = world.value(100_000)
        one.insert(f"k{number}", value)
        other.take(world.key(f"k{number}", one), value, verb="select")
        world.close()

    for _ in range(3):  # what a library keeps from its first use on is no leak
        cycle()
    # Other programs make files in /dev/shm, too; one a cycle is ours.
    slack = {"descriptors": 2, "tasks": 1, "resident": 24 << 20, "shared": CYCLES // 2, "files": CYCLES // 2}
    found = grown_each_time(cycle, slack, CYCLES)
    require_equal(found, {}, f"what {CYCLES} cycles of use left behind")


@must("backend/12-instances", needs=("buffer", "tensors"))
def test_instances(world: World) -> None:
    """Instances in one process do not disturb each other: when one is closed, the others go on."""
    one, other, third = world.node(name="one"), world.node(name="other"), world.node(name="third")
    value = world.value()
    other.insert("k", value)
    one.insert("j", value)
    one.close()
    third.take(world.key("k", other), value, verb="select")
