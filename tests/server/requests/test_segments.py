"""One thread does all that is asked of the pool, in order; what never fits is refused under the largest's name."""

import asyncio
from pathlib import Path

import pytest

from server.children.background import Background
from server.requests.refusal import Refusal
from server.requests.segments import Segments, check_media_tokens, never_fits
from shm import NeverFits, Owner, Pool
from tokenization.messages import Measured


def measured(*n_pads: int) -> Measured:
    params = tuple(f"inputs[{i}].image" for i in range(len(n_pads)))
    return Measured(request_id="chat-1", nbytes=(9,) * len(n_pads), params=params, n_pads=n_pads)


def test_the_limit_itself_is_taken() -> None:
    check_media_tokens(measured(4, 6), 10)
    with pytest.raises(Refusal) as caught:
        check_media_tokens(measured(4, 7), 10)
    assert (caught.value.kind, caught.value.param) == ("invalid_request", "inputs[1].image")
    assert all(f" {n}" in caught.value.message for n in (11, 10, 7))


def test_the_largest_segment_is_named() -> None:
    found = never_fits(Measured(request_id="chat-1", nbytes=(3, 9, 5), params=("a", "b", "c"), n_pads=(4, 4, 4)))
    assert (found.kind, found.param, found.code) == ("invalid_request", "b", "media_too_large")


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
