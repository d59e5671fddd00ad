"""One thread does all that is asked of the pool, in order; what never fits is refused under the largest's name."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

from server.requests.background import Background
from server.requests.refusal import Refusal
from server.requests.segments import Segments, check_media_tokens, without_room
from shm import NeverFits, Owner, Pool, PoolFull
from tests.server.doubles import until
from tokenization.messages import Measured


def measured(*n_tokens: int) -> Measured:
    params = tuple(f"inputs[{i}].image" for i in range(len(n_tokens)))
    return Measured(request_id="chat-1", nbytes=(9,) * len(n_tokens), params=params, n_tokens=n_tokens)


def test_the_limit_itself_is_taken() -> None:
    check_media_tokens(measured(4, 6), 10)
    with pytest.raises(Refusal) as caught:
        check_media_tokens(measured(4, 7), 10)
    assert (caught.value.kind, caught.value.param) == ("invalid_request", "inputs[1].image")
    assert all(f" {n}" in caught.value.message for n in (11, 10, 7))


def test_the_largest_segment_is_named() -> None:
    asked = Measured(request_id="chat-1", nbytes=(3, 9, 5), params=("a", "b", "c"), n_tokens=(4, 4, 4))
    found = without_room(NeverFits("too large"), asked)
    assert (found.kind, found.param, found.code) == ("invalid_request", "b", "media_too_large")


def test_a_full_pool_says_when_to_come_back() -> None:
    found = without_room(PoolFull(2.5), measured(4))
    assert (found.kind, found.code, found.retry_after) == ("overloaded", "memory_full", 2.5)


def test_a_lease_that_was_cancelled_is_found_by_the_retire_that_follows(tmp_path: Path) -> None:
    async def scenario() -> None:
        background = Background()
        owner = Owner.claim(tmp_path / "shm")
        segments = Segments(Pool(owner, 1 << 20), background)
        for _ in range(20):
            lease = asyncio.create_task(segments.lease("r", [1000, 2000]))
            await asyncio.sleep(0)
            lease.cancel()
            segments.retire("r")
            await segments.settle("r")
            stats = await segments.stats()
            assert (stats.leases, stats.path_files, stats.segments) == (0, 0, 2)
        with pytest.raises(NeverFits):
            await segments.lease("r", [2 << 20])
        await background.idle()
        segments.close()
        owner.close()

    asyncio.run(scenario())


class PoolDouble:
    """Notes who asks for what in which thread; `gate` closed, every call waits."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.threads: set[int] = set()
        self.gate = threading.Event()
        self.gate.set()
        self.failure: Exception | None = None

    def _call(self, what: str) -> None:
        self.threads.add(threading.get_ident())
        assert self.gate.wait(20), "the loop does not go on while the pool works"
        self.calls.append(what)
        if self.failure is not None:
            raise self.failure

    def lease(self, request_id: str, nbytes: Sequence[int]) -> tuple[str, ...]:
        self._call(f"lease {request_id}")
        return tuple(f"{request_id}-{n}" for n in nbytes)

    def give_back(self, request_id: str, names: Sequence[str]) -> None:
        self._call(f"give_back {request_id} {','.join(names)}")

    def retire(self, request_id: str) -> None:
        self._call(f"retire {request_id}")

    def settle(self, request_id: str) -> None:
        self._call(f"settle {request_id}")

    def stats(self) -> str:
        self._call("stats")
        return "a snapshot"


def with_double(scenario: Callable[[Segments, PoolDouble, Background], Coroutine[Any, Any, None]]) -> PoolDouble:
    """Run a scenario over a pool that is no pool."""
    pool: Any = PoolDouble()

    async def run() -> None:
        background = Background()
        segments = Segments(pool, background)
        try:
            await asyncio.wait_for(scenario(segments, pool, background), 20)
            await background.idle()
        finally:
            pool.gate.set()
            segments.close()

    asyncio.run(run())
    found: PoolDouble = pool
    return found


def test_all_calls_run_in_one_other_thread_in_their_order() -> None:
    async def scenario(segments: Segments, pool: PoolDouble, background: Background) -> None:
        pool.gate.clear()
        segments.retire("a")
        segments.give_back("b", ["x", "y"])
        lease = asyncio.create_task(segments.lease("c", [7, 8]))
        settle = asyncio.create_task(segments.settle("a"))
        await asyncio.sleep(0)
        segments.retire("c")
        stats = asyncio.create_task(segments.stats())
        await asyncio.sleep(0)
        assert pool.calls == [] and not lease.done()
        pool.gate.set()
        assert await lease == ("c-7", "c-8")
        await settle
        assert str(await stats) == "a snapshot"

    pool = with_double(scenario)
    assert pool.calls == ["retire a", "give_back b x,y", "lease c", "settle a", "retire c", "stats"]
    assert len(pool.threads) == 1 and threading.get_ident() not in pool.threads


def test_a_lease_whose_request_left_is_made_before_it_is_retired() -> None:
    """The thread is at it when the request leaves: what it makes must not stay out."""

    async def scenario(segments: Segments, pool: PoolDouble, background: Background) -> None:
        pool.gate.clear()
        lease = asyncio.create_task(segments.lease("a", [7]))
        await until(lambda: pool.threads)
        lease.cancel()
        segments.retire("a")
        await asyncio.wait({lease})
        assert lease.cancelled() and pool.calls == []
        pool.gate.set()
        await segments.settle("a")

    assert with_double(scenario).calls == ["lease a", "retire a", "settle a"]


def test_close_waits_for_what_was_begun() -> None:
    async def scenario() -> None:
        pool: Any = PoolDouble()
        pool.gate.clear()
        background = Background()
        segments = Segments(pool, background)
        segments.retire("a")
        segments.give_back("b", ["x"])
        threading.Timer(0.05, pool.gate.set).start()
        segments.close()
        assert pool.calls == ["retire a", "give_back b x"]
        await background.idle()

    asyncio.run(scenario())


@pytest.mark.parametrize("call", ["retire", "give_back"])
def test_a_call_that_nobody_awaits_does_not_fail_unseen(call: str) -> None:
    async def scenario(segments: Segments, pool: PoolDouble, background: Background) -> None:
        pool.failure = OSError("the owner file was removed")
        if call == "retire":
            segments.retire("a")
        else:
            segments.give_back("a", ["x"])
        with pytest.raises(OSError, match="removed"):
            await background.failed

    with_double(scenario)


def test_what_does_not_fit_now_fits_when_the_other_has_let_go(tmp_path: Path) -> None:
    async def scenario() -> None:
        background = Background()
        owner = Owner.claim(tmp_path / "shm")
        segments = Segments(Pool(owner, 1 << 20), background)
        await segments.lease("a", [600_000])
        with pytest.raises(PoolFull) as caught:
            await segments.lease("b", [600_000])
        assert caught.value.retry_after > 0
        segments.retire("a")
        with pytest.raises(PoolFull):
            await segments.lease("b", [600_000])
        await segments.settle("a")
        assert len(await segments.lease("b", [600_000])) == 1
        segments.retire("b")
        await segments.settle("b")
        await background.idle()
        segments.close()
        owner.close()

    asyncio.run(scenario())
