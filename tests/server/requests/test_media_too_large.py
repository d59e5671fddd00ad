"""Media that never fit are refused as soon as they are measured, under the name of the largest."""

import pytest

from server.requests.refusal import Refusal
from server.requests.segments import check_media_tokens, never_fits
from tests.server.doubles import Scene, until
from tests.server.scenario import Play, fails, request, start
from tokenization.messages import Cancel, Measured, PrepareFailed


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


def test_what_the_engine_can_never_hold_is_refused_before_a_lease(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        task, _ = start(scene, request("image", "image"))
        await until(lambda: scene.workers.slots[0].job is not None)
        scene.workers.slots[0].on_message(measured(300, 201))
        await fails(task, "invalid_request", "media_too_large", "inputs[0].image")
        assert (await scene.stats()).segments == 0 and scene.to_engine() == []
        await until(lambda: scene.to_worker()[-1] == Cancel(request_id="chat-1"))
        scene.workers.slots[0].on_message(PrepareFailed(request_id="chat-1", kind="cancelled", message=""))

    play(scenario)
