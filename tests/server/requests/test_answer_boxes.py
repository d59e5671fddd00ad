"""The boxes of an answer lie on the latest picture, and only the native route asks for them."""

import msgspec
import pytest

from server.requests.answer import boxes_of, drawing_of
from server.requests.refusal import Refusal
from tests.server.doubles import chat_of, prepared_pictures
from tests.server.http.request_bodies import read_native, read_openai
from tokenization.chat.boxes import Box
from tokenization.messages import MediaItem

SAID = "<ref>cat</ref><box>(100,200),(700,800)</box>"


def test_boxes_lie_on_the_latest_picture_counted_from_the_first_one_sent() -> None:
    box = Box(ref="cat", kind="box", points=((20, 20), (140, 80)), picture=1)
    assert boxes_of(SAID, chat_of("image", "text", "image"), prepared_pictures([(10, 10), (200, 100)])) == (box,)
    assert boxes_of(SAID, chat_of("image", "text", "image"), prepared_pictures([(200, 100)])) == (
        box,
    )  # the first was dropped
    assert boxes_of(SAID, chat_of("image"), prepared_pictures([])) == ()
    assert boxes_of("no boxes", chat_of("image"), prepared_pictures([(200, 100)])) == ()


def test_only_pictures_are_pointed_at() -> None:
    """Behind the picture: a video with its sound, which are two items, and a sound."""
    chat = chat_of("audio", "image", "video", "text", "audio")
    picture = prepared_pictures([(200, 100)]).media[0]
    others = [MediaItem(kind=kind, spans=((0, 2),), grid=(1, 1, 1)) for kind in ("video", "audio")]
    found = msgspec.structs.replace(prepared_pictures([]), media=(others[1], picture, *others, others[1]))
    (box,) = boxes_of(SAID, chat, found)
    assert (box.picture, box.points) == (0, ((20, 20), (140, 80)))
    assert drawing_of("r", chat, (box,)).media.param == "inputs[1]"
    assert boxes_of(SAID, chat_of("audio"), msgspec.structs.replace(found, media=(others[1],))) == ()


def test_only_the_native_route_asks_for_boxes() -> None:
    def of(parameters: str) -> str:
        return read_native(b'{"inputs": [{"text": "x"}], "parameters": ' + parameters.encode() + b"}").grounding

    assert (of("{}"), of('{"draw_boxes": false}'), of('{"draw_boxes": true}')) == ("boxes", "boxes", "drawn")
    with pytest.raises(Refusal) as caught:
        of('{"draw_boxes": "yes"}')
    assert caught.value.param == "parameters.draw_boxes"
    assert read_openai(b'{"messages": [{"role": "user", "content": "x"}], "draw_boxes": true}').grounding == "none"
