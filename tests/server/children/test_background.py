"""Small parts of the loop: tasks that nobody awaits, and the pool's one thread."""

import asyncio
from pathlib import Path

import pytest

from server.children.background import Background
from server.requests.segments import Segments
from shm import NeverFits, Owner, Pool


def test_the_first_error_is_kept_and_idle_waits_for_all() -> None:
    async def scenario() -> None:
        background = Background()
        done: list[int] = []

        async def work(n: int) -> None:
            await asyncio.sleep(0.01)
            done.append(n)
            if n == 1:
                background.spawn(work(2))
            if n == 2:
                raise KeyError(n)

        background.spawn(work(1))
        await background.idle()
        assert done == [1, 2]
        with pytest.raises(KeyError):
            await background.failed

    asyncio.run(scenario())


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
