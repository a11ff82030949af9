"""`Steps` and `Turns`: tasks one after the other, and operations on one key one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kvbridge.abc import MoveState, Ready, Task
from kvbridge.buffers.steps import Begin, Script, Steps
from kvbridge.buffers.turns import Turns
from kvbridge.errors import CancelledError, TransportError
from kvbridge.transfer import cancelled
from tests.slow_store import SlowStore

if TYPE_CHECKING:
    from collections.abc import Callable


class Told(Task[Any]):
    """Does at each step what it is told: a state, an error, or a result."""

    def __init__(self, *told: object) -> None:
        self.told = list(told)
        self.aborts = 0

    def step(self) -> MoveState:
        told = self.told.pop(0)
        if isinstance(told, Exception):
            raise told
        if isinstance(told, MoveState):
            return told
        self.result = told
        return MoveState.DONE

    def abort(self) -> None:
        self.aborts += 1


WAIT, AGAIN, DONE = MoveState.WAIT, MoveState.AGAIN, MoveState.DONE


def steps(script: Callable[[], Script[Any]]) -> Steps[Any]:
    return Steps(SlowStore(), "doing it", script())


def one_after_the_other(*tasks: Task[Any]) -> Callable[[], Script[list[Any]]]:
    def script() -> Script[list[Any]]:
        results = []
        for task in tasks:
            result = yield Begin(lambda task=task: task)  # type: ignore[misc]
            results.append(result)
        return results

    return script


def test_each_begins_when_the_one_before_is_done_and_results_are_handed_in() -> None:
    first, second = Told(WAIT, AGAIN, "one"), Told(WAIT, "two")
    done = steps(one_after_the_other(first, second, Ready(3)))
    assert [done.step() for _ in range(4)] == [WAIT, AGAIN, WAIT, DONE]
    assert done.result == ["one", "two", 3]


def test_what_is_ready_takes_no_step_of_its_own() -> None:
    done = steps(one_after_the_other(Ready(1), Ready(2)))
    assert done.step() is DONE
    assert done.result == [1, 2]


@pytest.mark.parametrize("error", [TransportError("gone"), ValueError("a bug")])
@pytest.mark.parametrize("where", ["call", "step"])
def test_an_error_is_thrown_into_the_script_which_may_go_on(error: Exception, where: str) -> None:
    def begin() -> Task[Any]:
        if where == "call":
            raise error
        return Told(error)

    def script() -> Script[Any]:
        try:
            yield Begin(begin)
        except TransportError as found:
            return found, (yield Begin(lambda: Told(WAIT, "after")))

    done = steps(script)
    assert [done.step(), done.step()] == [WAIT, DONE]
    found, after = done.result
    assert (found if isinstance(error, TransportError) else found.__cause__) is error
    assert after == "after"


def test_an_error_that_the_script_does_not_take_is_raised() -> None:
    with pytest.raises(TransportError):
        steps(one_after_the_other(Told(TransportError("gone")))).step()


@pytest.mark.parametrize("ends", [cancelled("it"), "too late"])
def test_after_an_abort_the_present_one_is_aborted_and_no_other_begins(ends: object) -> None:
    present, never = Told(WAIT, WAIT, ends), Told()
    done = steps(one_after_the_other(Ready(1), present, never))
    assert done.step() is WAIT
    done.abort()
    assert present.aborts == 1
    assert done.step() is WAIT
    with pytest.raises(CancelledError):
        done.step()


def test_an_abort_that_comes_too_late_changes_nothing() -> None:
    done = steps(one_after_the_other(Told(WAIT, "value")))
    done.step()
    done.abort()
    assert done.step() is DONE
    assert done.result == ["value"]


def test_what_was_aborted_before_its_first_step_begins_nothing_and_cleans_up() -> None:
    begun: list[str] = []

    def script() -> Script[None]:
        try:
            yield Begin(lambda: begun.append("begun") or Ready(None))  # type: ignore[func-returns-value]
        finally:
            begun.append("cleaned up")

    done = steps(script)
    done.abort()
    with pytest.raises(CancelledError):
        done.step()
    assert begun == ["cleaned up"]


def test_it_knows_whether_memory_is_touched() -> None:
    def script() -> Script[None]:
        yield Begin(lambda: Told(WAIT, None))
        yield Begin(lambda: Told(WAIT, None), touches=True)
        yield Begin(lambda: Told(WAIT, None))

    done = steps(script)
    touches = [done.touches]
    while done.step() is not DONE:
        touches.append(done.touches)
    assert touches == [False, False, True, False]
    assert not done.touches


def test_turns_come_in_order_and_only_for_one_key() -> None:
    turns = Turns()
    one, two, other = turns.join("a"), turns.join("a"), turns.join("b")
    assert [turn.step() for turn in (one, two, other)] == [DONE, WAIT, DONE]
    with one:
        pass
    assert two.step() is DONE


def test_who_waits_for_several_keys_waits_for_all_and_never_for_one_behind_him() -> None:
    turns = Turns()
    one, both, back, last = turns.join("a"), turns.join("a", "b", "a"), turns.join("b", "a"), turns.join("b")
    assert [turn.step() for turn in (one, both, back, last)] == [DONE, WAIT, WAIT, WAIT]
    for ended, next_ in [(one, both), (both, back), (back, last)]:
        with ended:
            pass
        assert next_.step() is DONE


def test_who_gives_up_waiting_leaves_the_line() -> None:
    turns = Turns()
    one, two, three = turns.join("a"), turns.join("a", inserts=True), turns.join("a")
    assert turns.inserting("a")
    two.abort()
    with pytest.raises(CancelledError), two:
        two.step()
    assert not turns.inserting("a")
    with one:
        assert three.step() is WAIT
    assert three.step() is DONE
    with three:
        pass
    assert not turns._lines
