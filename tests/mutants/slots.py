"""Wrong pools of slots, each a few lines away from the right one."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from kvbridge.abc import Backend, Move, MoveState
from kvbridge.errors import UnsupportedError
from kvbridge.memory import Pages, Region
from kvbridge.memory.copying import copies
from kvbridge.memory.slots import slots_bytes
from kvbridge.transfer import cancelled
from kvbridge_cpu import CpuBackend, CpuOptions
from kvbridge_cpu.slots import HostSlots

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvbridge.abc import SlotPool

KEPT: list[Any] = []
"""What leaks: kept for ever."""

SLICE = 1 << 20


def copied(source: Pages, target: Pages) -> None:
    for step in copies(source, target, SLICE):
        step()


class ByAThread(Move):
    """A copy on a thread of its own, which ends its slice when it is aborted."""

    def __init__(self, source: Pages, target: Pages, work: Callable[[ByAThread, Pages, Pages], None]) -> None:
        self.stopping = False
        self.stopped = False
        self.thread = threading.Thread(target=work, args=(self, source, target), daemon=True)
        self.thread.start()

    def step(self) -> MoveState:
        if self.thread.is_alive():
            return MoveState.WAIT
        if self.stopped:
            raise cancelled("the copy")
        return MoveState.DONE

    def abort(self) -> None:
        self.stopping = True


def work(move: ByAThread, source: Pages, target: Pages) -> None:
    for step in copies(source, target, SLICE):
        if move.stopping:
            move.stopped = True
            return
        step()


class Mutant(CpuBackend):
    name = ""
    Pool: type[HostSlots] = HostSlots

    def open_pool(self, like: Any, slots: int, memory: Any = None) -> SlotPool:
        return self.Pool(like, slots, memory)


class ClaimsSlots(Mutant):
    """Claims slots and has none."""

    open_pool = Backend.open_pool  # type: ignore[assignment]


class DoesNotClaim(Mutant):
    """Has slots and does not claim them."""

    def __init__(self, options: CpuOptions) -> None:
        super().__init__(options)
        self._capabilities = msgspec.structs.replace(self._capabilities, slots=False)


class BlamesAnotherFlag(DoesNotClaim):
    """Refuses slots, and does not say why."""

    def open_pool(self, like: Any, slots: int, memory: Any = None) -> SlotPool:
        raise UnsupportedError("no", flag="pages")


class CountsFromOne(Mutant):
    """Has slots from 1 on, as a cache has blocks."""

    class Pool(HostSlots):
        def __init__(self, like: Any, slots: int, memory: Any = None) -> None:
            super().__init__(like, slots, memory)
            self.regions = tuple(replace(region, first_block=1) for region in self.regions)


class Overlaps(Mutant):
    """Forgets how large the regions before are."""

    class Pool(HostSlots):
        def __init__(self, like: Any, slots: int, memory: Any = None) -> None:
            super().__init__(like, slots, memory)
            self.regions = tuple(
                Region.over(self.regions[0].host[: region.nbytes], region.page_bytes) if index else region
                for index, region in enumerate(self.regions)
            )


class SortsSlots(Mutant):
    """Fills slots in the order of memory, which is faster."""

    class Pool(HostSlots):
        def copy(self, source: Pages, target: Pages) -> Move:
            return super().copy(source, Pages(target.regions, tuple(np.sort(ids) for ids in target.block_ids)))


class IgnoresTheStride(Mutant):
    """Takes pages for adjacent that are not."""

    class Pool(HostSlots):
        def copy(self, source: Pages, target: Pages) -> Move:
            return super().copy(adjacent(source), adjacent(target))


def adjacent(pages: Pages) -> Pages:
    return Pages(tuple(replace(region, block_stride=region.page_bytes) for region in pages.regions), pages.block_ids)


class CountsFromTheFirstBlock(Mutant):
    """Is a block off where the cache has a null block."""

    class Pool(HostSlots):
        def copy(self, source: Pages, target: Pages) -> Move:
            ids = tuple(
                np.maximum(ids - region.first_block, region.first_block)
                for region, ids in zip(source.regions, source.block_ids, strict=True)
            )
            return super().copy(Pages(source.regions, ids), target)


class WritesBeside(Mutant):
    """Writes one page too many."""

    class Pool(HostSlots):
        def copy(self, source: Pages, target: Pages) -> Move:
            for region, ids in zip(target.regions, target.block_ids, strict=True):
                if len(ids):
                    region.rows()[(int(ids[-1]) + 1) % region.num_blocks] = 0
            return super().copy(source, target)


class WritesBetween(Mutant):
    """Copies whole strides, with what is between two pages."""

    class Pool(HostSlots):
        def copy(self, source: Pages, target: Pages) -> Move:
            for region, ids in zip(target.regions, target.block_ids, strict=True):
                for block in ids:
                    start = int(block) * region.block_stride
                    region.host[start + region.page_bytes : start + region.block_stride] = 0
            return super().copy(source, target)


class OneOrderForAll(Mutant):
    """Takes the ids of the first region for all."""

    class Pool(HostSlots):
        def copy(self, source: Pages, target: Pages) -> Move:
            ids = target.block_ids[:1] * len(target.block_ids)
            return super().copy(source, Pages(target.regions, ids))


class LosesTheEnd(Mutant):
    """Copies some MiB, and no more."""

    class Pool(HostSlots):
        def copy(self, source: Pages, target: Pages) -> Move:
            if source.nbytes < 16 << 20:
                return super().copy(source, target)
            count = len(source.block_ids[0]) // 2
            less = [Pages(p.regions, tuple(ids[:count] for ids in p.block_ids)) for p in (source, target)]
            return super().copy(*less)


class MixesCopies(Mutant):
    """Has one place in which it says where bytes are to go."""

    class Pool(HostSlots):
        def copy(self, source: Pages, target: Pages) -> Move:
            self.target = target

            def late(move: ByAThread, source: Pages, target: Pages) -> None:
                time.sleep(0.01)
                copied(source, self.target)

            return ByAThread(source, target, late)


class CopiesWhenStepped(Mutant):
    """Copies in `step`, on the engine's thread."""

    class Pool(HostSlots):
        def copy(self, source: Pages, target: Pages) -> Move:
            class Stepped(Move):
                steps = copies(source, target, SLICE)
                aborted = False

                def step(self) -> MoveState:
                    if self.aborted:
                        raise cancelled("the copy")
                    found = next(self.steps, None)
                    if found is None:
                        return MoveState.DONE
                    found()
                    return MoveState.AGAIN

                def abort(self) -> None:
                    self.aborted = True

            return Stepped()


class CopiesAtOnce(Mutant):
    """Is done when `copy` returns."""

    class Pool(HostSlots):
        def copy(self, source: Pages, target: Pages) -> Move:
            copied(source, target)
            return super().copy(*(Pages.of(pages.regions, ()) for pages in (source, target)))


class DoneTooEarly(Mutant):
    """Says that it is done when its thread has most of it."""

    class Pool(HostSlots):
        def copy(self, source: Pages, target: Pages) -> Move:
            move = super().copy(source, target)

            class Early(Move):
                def step(self) -> MoveState:
                    move.step()
                    time.sleep(0.001)
                    return MoveState.DONE

                def abort(self) -> None:
                    move.abort()

            return Early()


class TakesWrongPages(Mutant):
    """Copies as much as fits."""

    class Pool(HostSlots):
        def copy(self, source: Pages, target: Pages) -> Move:
            def fitting(move: ByAThread, source: Pages, target: Pages) -> None:
                for one, other, begins, intos in zip(
                    source.regions, target.regions, source.block_ids, target.block_ids, strict=False
                ):
                    for begin, into in zip(begins, intos, strict=False):
                        size = min(one.page_bytes, other.page_bytes)
                        other.rows().view(np.uint8)[into, :size] = one.rows().view(np.uint8)[begin, :size]

            return ByAThread(source, target, fitting)


class AbortIsAnEnd(Mutant):
    """Reports an end while its thread goes on."""

    class Pool(HostSlots):
        def copy(self, source: Pages, target: Pages) -> Move:
            class Ends(ByAThread):
                def step(self) -> MoveState:
                    if self.stopping:
                        raise cancelled("the copy")
                    return super().step()

            return Ends(source, target, lambda _, source, target: copied(source, target))


class AbortOfLoadsIsAnEnd(AbortIsAnEnd):
    """The same for loads alone."""

    class Pool(AbortIsAnEnd.Pool):
        def copy(self, source: Pages, target: Pages) -> Move:
            saves = bool(target.regions) and target.regions[0] in self.regions
            return HostSlots.copy(self, source, target) if saves else super().copy(source, target)


class AbortNeverEnds(Mutant):
    """Forgets a copy that is not wanted."""

    class Pool(HostSlots):
        def copy(self, source: Pages, target: Pages) -> Move:
            class Forgets(ByAThread):
                def step(self) -> MoveState:
                    return MoveState.WAIT if self.stopped else super().step()

            return Forgets(source, target, work)


class CallsItDone(Mutant):
    """Says of a copy that was aborted that it is done."""

    class Pool(HostSlots):
        def copy(self, source: Pages, target: Pages) -> Move:
            class Done(ByAThread):
                def step(self) -> MoveState:
                    return MoveState.WAIT if self.thread.is_alive() else MoveState.DONE

            return Done(source, target, work)


class AbortsAll(Mutant):
    """Ends all copies when one is aborted."""

    class Pool(HostSlots):
        def copy(self, source: Pages, target: Pages) -> Move:
            under_way = self.__dict__.setdefault("under_way", [])

            class TakesAlong(ByAThread):
                def abort(self) -> None:
                    for one in under_way:
                        one.stopping = True

            def slowly(move: ByAThread, source: Pages, target: Pages) -> None:
                time.sleep(0.5)  # so that none has ended when one is aborted, on however slow a machine
                work(move, source, target)

            under_way.append(TakesAlong(source, target, slowly))
            return under_way[-1]


class ClosesOnce(Mutant):
    class Pool(HostSlots):
        closed = False

        def close(self) -> None:
            if self.closed:
                raise RuntimeError("closed already")
            self.closed = True
            super().close()


class HangsInClose(Mutant):
    """Ends what it began, however long that takes."""

    class Pool(HostSlots):
        def close(self) -> None:
            time.sleep(3)
            super().close()


class CopiesOn(Mutant):
    """Lets its threads go on when it is closed."""

    class Pool(HostSlots):
        def copy(self, source: Pages, target: Pages) -> Move:
            super().copy(*(Pages.of(pages.regions, ()) for pages in (source, target)))
            return ByAThread(source, target, work)


class WorksAfterClose(Mutant):
    """Takes copies when it is closed."""

    class Pool(HostSlots):
        def copy(self, source: Pages, target: Pages) -> Move:
            if self.regions:
                return super().copy(source, target)
            return ByAThread(source, target, work)


class LeavesAThread(Mutant):
    class Pool(HostSlots):
        def __init__(self, like: Any, slots: int, memory: Any = None) -> None:
            super().__init__(like, slots, memory)
            threading.Thread(target=threading.Event().wait, args=(600,), daemon=True).start()


class LeavesADescriptor(Mutant):
    class Pool(HostSlots):
        def __init__(self, like: Any, slots: int, memory: Any = None) -> None:
            super().__init__(like, slots, memory)
            KEPT.append(os.dup(0))


class KeepsItsMemory(Mutant):
    class Pool(HostSlots):
        def __init__(self, like: Any, slots: int, memory: Any = None) -> None:
            super().__init__(like, slots, memory)
            KEPT.append(self.regions)


class IgnoresTheMemory(Mutant):
    """Takes memory of its own, whatever it is given."""

    def open_pool(self, like: Any, slots: int, memory: Any = None) -> SlotPool:
        return HostSlots(like, slots)


class CopiesTheMemory(Mutant):
    """Gives memory back with what is in it, and does not use it before."""

    class Pool(HostSlots):
        def __init__(self, like: Any, slots: int, memory: Any = None) -> None:
            self.given, self.own = memory, None if memory is None else memory.copy()
            super().__init__(like, slots, self.own)

        def close(self) -> None:
            super().close()
            if self.given is not None:
                self.given[:] = self.own


class CountsSlots(Mutant):
    """Says how many slots it has, and calls it bytes."""

    class Pool(HostSlots):
        def __init__(self, like: Any, slots: int, memory: Any = None) -> None:
            super().__init__(like, slots, memory)
            self.used_bytes = slots


class HidesItsStage(Mutant):
    """Has as much memory again, and does not count it."""

    class Pool(HostSlots):
        def __init__(self, like: Any, slots: int, memory: Any = None) -> None:
            super().__init__(like, slots, memory)
            self.stage = np.ones(self.used_bytes, dtype=np.uint8)


class ExaggeratesItsSize(Mutant):
    class Pool(HostSlots):
        def __init__(self, like: Any, slots: int, memory: Any = None) -> None:
            super().__init__(like, slots, memory)
            self.used_bytes *= 3


class RaisesWhatItGets(Mutant):
    """Lets the error of its allocator through."""

    def open_pool(self, like: Any, slots: int, memory: Any = None) -> SlotPool:
        if memory is None:
            memory = np.zeros(slots_bytes([region.page_bytes for region in like], slots), dtype=np.uint8)
        return super().open_pool(like, slots, memory)


class CutsItsSlots(Mutant):
    """Has as many slots as there is room for."""

    class Pool(HostSlots):
        def __init__(self, like: Any, slots: int, memory: Any = None) -> None:
            while memory is not None and slots_bytes([region.page_bytes for region in like], slots) > memory.nbytes:
                slots -= 1
            super().__init__(like, slots, memory)


class OneQueue(Mutant):
    """Copies in the order in which it is asked."""

    class Pool(HostSlots):
        def __init__(self, like: Any, slots: int, memory: Any = None) -> None:
            super().__init__(like, slots, memory)
            self._loads = self._saves
