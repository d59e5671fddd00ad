"""What stands beside an answer that points: what was asked for, whatever becomes of the picture."""

from dataclasses import replace
from typing import Any

import pytest

from server.requests.refusal import Refusal
from server.requests.request import ChatRequest
from tests.server.doubles import EmitDouble, Scene, prepared_pictures, until
from tests.server.scenario import Play, generating, leased, request, start
from tests.server.tables import each_of
from tokenization.messages import Draw, Drawn, PrepareFailed
from tokenization.text.bpe import BPETokenizer

SAID = "<ref>cat</ref><box>(100,200),(700,800)</box>"


def asks(grounding: Any) -> ChatRequest:
    return replace(request("image", "text"), grounding=grounding)


async def answered(scene: Scene, tokenizer: BPETokenizer, asked: ChatRequest) -> "tuple[Any, EmitDouble]":
    """Play the request up to its last token, which completes SAID."""
    scene.service.card = replace(scene.service.card, supports_grounding=True)
    task, sink = start(scene, asked)
    await leased(scene, asked)
    await until(lambda: scene.workers.slots[0].job is not None)
    scene.workers.slots[0].on_message(prepared_pictures([(200, 100)]))
    await until(lambda: scene.to_engine())
    scene.say("chat-1", *tokenizer.encode(SAID), finish="length")
    return task, sink


def test_a_request_gets_what_it_asked_for(play: Play, tokenizer: BPETokenizer) -> None:
    async def scenario(scene: Scene) -> None:
        task, sink = await answered(scene, tokenizer, asks("boxes"))
        await task
        assert [delta.grounded for delta in sink.deltas[:-1]] == [None] * (len(sink.deltas) - 1)
        grounded = sink.deltas[-1].grounded
        assert grounded is not None and grounded.as_json() == {
            "boxes": ({"ref": "cat", "kind": "box", "points": ((20, 20), (140, 80)), "picture": 0},)
        }
        assert not any(isinstance(said, Draw) for said in scene.to_worker())

    play(scenario)


def test_nobody_else_gets_boxes(play: Play, tokenizer: BPETokenizer) -> None:
    async def scenario(scene: Scene) -> None:
        task, sink = await answered(scene, tokenizer, asks("none"))
        await task
        assert sink.deltas[-1].grounded is None and sink.text == SAID

    play(scenario)


@each_of("end", ["drawn", "refused", "broken", "died"])
def test_the_answer_is_good_whatever_becomes_of_the_picture(play: Play, tokenizer: BPETokenizer, end: str) -> None:
    async def scenario(scene: Scene) -> None:
        task, sink = await answered(scene, tokenizer, asks("drawn"))
        await until(lambda: isinstance(scene.to_worker()[-1], Draw))
        job = scene.to_worker()[-1]
        assert job.media.param == "inputs[0]" and job.boxes[0].points == ((20, 20), (140, 80))
        if end == "drawn":
            scene.workers.slots[0].on_message(Drawn(request_id="chat-1", picture="data:x", notes=("a note",)))
        elif end == "died":
            scene.kill_worker()
        else:
            kind: Any = "bad_request" if end == "refused" else "internal"
            failed = PrepareFailed(request_id="chat-1", kind=kind, message="the file is gone")
            scene.workers.slots[0].on_message(failed)
        await task
        grounded = sink.deltas[-1].grounded
        assert grounded is not None and len(grounded.boxes) == 1 and sink.text == SAID
        body = grounded.as_json()
        assert (body["drawn"], body["notes"]) == {
            "drawn": ("data:x", ["a note"]),
            "refused": (None, ["the picture could not be drawn: the file is gone"]),
            "broken": (None, ["the picture could not be drawn"]),
            "died": (None, ["the picture could not be drawn"]),
        }[end]

    play(scenario)


def test_a_model_without_boxes_draws_none(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        with pytest.raises(Refusal) as caught:
            await scene.service.run([asks("drawn")], EmitDouble())
        assert caught.value.kind == "invalid_request" and caught.value.param == "parameters.draw_boxes"
        task, sink = start(scene, replace(request("text"), grounding="boxes"))
        await generating(scene)
        scene.say("chat-1", 65, finish="length")
        await task
        assert sink.deltas[-1].grounded is None

    play(scenario)
