"""One thread does all that is asked of the pool, in order; what never fits is refused under the largest's name."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

from server.http.health import readiness
from server.requests.segments import Segments, too_many_tokens, without_room
from shm import NeverFits, Owner, Pool, PoolFull
from tests.server.doubles import Scene, until
from tests.server.scenario import Play
from tests.tables import each_of
from tokenization.messages import Measured


def measured(*n_tokens: int) -> Measured:
    params = tuple(f"inputs[{i}].image" for i in range(len(n_tokens)))
    return Measured(request_id="chat-1", nbytes=(9,) * len(n_tokens), params=params, n_tokens=n_tokens)


def test_the_largest_medium_is_named_with_the_tokens_of_all() -> None:
    found = too_many_tokens(measured(4, 7), 10)
    assert (found.kind, found.param) == ("invalid_request", "inputs[1].image")
    assert all(f" {n}" in found.message for n in (11, 10, 7))


def retire(segments: Segments, name: str) -> None:
    segments.spawn(segments.call(segments.pool.retire, name))


def give_back(segments: Segments, name: str, names: Sequence[str]) -> None:
    segments.spawn(segments.call(segments.pool.give_back, name, names))


async def settle(segments: Segments, name: str) -> None:
    await segments.call(segments.pool.settle, name)


def test_a_full_pool_says_when_to_come_back() -> None:
    found = without_room(PoolFull(2.5), "a")
    assert (found.kind, found.code, found.retry_after) == ("overloaded", "memory_full", 2.5)
    assert found.message == "shared memory is full of other requests' media"
    found = without_room(PoolFull(2.5, by_others=True), "a")
    assert found.code == "memory_full" and "files that are not this server's" in found.message
    assert "`ls -l`" in found.message and "--shm-root" in found.message


def test_a_file_system_that_others_fill_is_named_in_the_log_and_to_probes(
    play: Play, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(scene: Scene) -> None:
        segments, full = scene.segments, [True, True, False, True]
        real = segments.pool.lease

        def lease(request_id: str, nbytes: Sequence[int]) -> tuple[str, ...]:
            if full.pop(0):
                raise PoolFull(1.0, by_others=True)
            return real(request_id, nbytes)

        monkeypatch.setattr(segments.pool, "lease", lease)
        for shown in ("crowded", "crowded", "ok", "crowded"):
            with contextlib.suppress(PoolFull):
                await segments.lease("a", (100,))
            assert readiness(scene.service)[0]["shm"] == shown
        said = [one for one in caplog.messages if "`ls -l`" in one]
        assert len(said) == 2 and all(str(segments.pool.root) in one and "--shm-root" in one for one in said)
        retire(segments, "a")
        await settle(segments, "a")

    play(scenario)


def test_a_lease_that_was_cancelled_is_found_by_the_retire_that_follows(tmp_path: Path) -> None:
    async def scenario() -> None:
        owner = Owner.claim(tmp_path / "shm")
        segments = Segments(Pool(owner, 1 << 20))
        for _ in range(20):
            lease = asyncio.create_task(segments.lease("r", [1000, 2000]))
            await asyncio.sleep(0)
            lease.cancel()
            retire(segments, "r")
            await settle(segments, "r")
            stats = await segments.stats()
            assert (stats.leases, stats.path_files, stats.segments) == (0, 0, 2)
        with pytest.raises(NeverFits):
            await segments.lease("r", [2 << 20])
        await segments.idle()
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


def with_double(scenario: Callable[[Segments, PoolDouble], Coroutine[Any, Any, None]]) -> PoolDouble:
    """Run a scenario over a pool that is no pool."""
    pool: Any = PoolDouble()

    async def run() -> None:
        segments = Segments(pool)
        try:
            await asyncio.wait_for(scenario(segments, pool), 20)
            await segments.idle()
        finally:
            pool.gate.set()
            segments.close()

    asyncio.run(run())
    found: PoolDouble = pool
    return found


def test_all_calls_run_in_one_other_thread_in_their_order() -> None:
    async def scenario(segments: Segments, pool: PoolDouble) -> None:
        pool.gate.clear()
        retire(segments, "a")
        give_back(segments, "b", ["x", "y"])
        lease = asyncio.create_task(segments.lease("c", [7, 8]))
        settled = asyncio.create_task(settle(segments, "a"))
        await asyncio.sleep(0)
        retire(segments, "c")
        stats = asyncio.create_task(segments.stats())
        await asyncio.sleep(0)
        assert pool.calls == [] and not lease.done()
        pool.gate.set()
        assert await lease == ("c-7", "c-8")
        await settled
        assert str(await stats) == "a snapshot"

    pool = with_double(scenario)
    assert pool.calls == ["retire a", "give_back b x,y", "lease c", "settle a", "retire c", "stats"]
    assert len(pool.threads) == 1 and threading.get_ident() not in pool.threads


def test_a_lease_whose_request_left_is_made_before_it_is_retired() -> None:
    """The thread is at it when the request leaves: what it makes must not stay out."""

    async def scenario(segments: Segments, pool: PoolDouble) -> None:
        pool.gate.clear()
        lease = asyncio.create_task(segments.lease("a", [7]))
        await until(lambda: pool.threads)
        lease.cancel()
        retire(segments, "a")
        await asyncio.wait({lease})
        assert lease.cancelled() and pool.calls == []
        pool.gate.set()
        await settle(segments, "a")

    assert with_double(scenario).calls == ["lease a", "retire a", "settle a"]


def test_close_waits_for_what_was_begun() -> None:
    async def scenario() -> None:
        pool: Any = PoolDouble()
        pool.gate.clear()
        segments = Segments(pool)
        retire(segments, "a")
        give_back(segments, "b", ["x"])
        threading.Timer(0.05, pool.gate.set).start()
        segments.close()
        assert pool.calls == ["retire a", "give_back b x"]
        await segments.idle()

    asyncio.run(scenario())


@each_of("call", ["retire", "give_back"])
def test_a_call_that_nobody_awaits_does_not_fail_unseen(call: str) -> None:
    async def scenario(segments: Segments, pool: PoolDouble) -> None:
        pool.failure = OSError("the owner file was removed")
        if call == "retire":
            retire(segments, "a")
        else:
            give_back(segments, "a", ["x"])
        with pytest.raises(OSError, match="removed"):
            await segments.failed

    with_double(scenario)


def test_what_does_not_fit_now_fits_when_the_other_has_let_go(tmp_path: Path) -> None:
    async def scenario() -> None:
        owner = Owner.claim(tmp_path / "shm")
        segments = Segments(Pool(owner, 1 << 20))
        await segments.lease("a", [600_000])
        with pytest.raises(PoolFull) as caught:
            await segments.lease("b", [600_000])
        assert caught.value.retry_after > 0
        retire(segments, "a")
        with pytest.raises(PoolFull):
            await segments.lease("b", [600_000])
        await settle(segments, "a")
        assert len(await segments.lease("b", [600_000])) == 1
        retire(segments, "b")
        await settle(segments, "b")
        await segments.idle()
        segments.close()
        owner.close()

    asyncio.run(scenario())


def test_the_first_error_is_kept_and_idle_waits_for_all() -> None:
    async def scenario() -> None:
        pool: Any = PoolDouble()
        segments = Segments(pool)
        done: list[int] = []

        async def work(n: int) -> None:
            await asyncio.sleep(0.01)
            done.append(n)
            if n == 1:
                segments.spawn(work(2))
            if n == 2:
                raise KeyError(n)

        segments.spawn(work(1))
        await segments.idle()
        assert done == [1, 2]
        with pytest.raises(KeyError):
            await segments.failed
        segments.close()

    asyncio.run(scenario())
