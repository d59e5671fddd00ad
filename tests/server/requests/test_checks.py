"""What a chat may hold, as multiples that a client can compute; and which ids a prompt has."""

from typing import Any

import pytest

from model.engine.messages import EngineReady
from server.requests.checks import FEWEST_PIECES, MOST_MEDIA, check_ids, check_pieces, room_for
from server.requests.refusal import Refusal
from tests.server.doubles import chat_of
from tokenization.chat.parts import Chat, Media, Prompt, RawPrompt, Text, ToolCall, Turn

INFO = EngineReady(
    device="cpu", dtype="float32", vocab_size=400, kv_blocks=1, block_size=1, memory=(), media_ids=(7, 9),
    max_media_tokens=1,
)  # fmt: skip


def turn(*parts: Any, calls: int = 0) -> Turn:
    call = ToolCall(id=None, name="f", arguments={}, size=0, param="")
    return Turn(role="user", parts=parts, plain=False, tool_calls=(call,) * calls)


def refused(chat: Prompt, max_model_len: int = 16) -> Refusal:
    with pytest.raises(Refusal) as caught:
        check_pieces(chat, "inputs", max_model_len)
    assert caught.value.code == "too_many_parts"
    return caught.value


@pytest.mark.parametrize(
    "turns",
    [
        (turn(),) * (FEWEST_PIECES + 1),
        (turn(*[Text(text="")] * FEWEST_PIECES),),
        (turn(calls=FEWEST_PIECES),),
        (turn(Media(kind="video", source="", param="", frames=("data:,",) * FEWEST_PIECES)),),
    ],
)
def test_turns_parts_calls_and_frames_are_counted_together(turns: tuple[Turn, ...]) -> None:
    assert refused(Chat(turns=turns)).param == "inputs"
    check_pieces(Chat(turns=turns), "inputs", FEWEST_PIECES * 2)
    fewer = turns[:-1] if len(turns) > 1 else (turn(Text(text="x")),)
    check_pieces(Chat(turns=fewer), "inputs", 16)


def test_media_have_a_bound_of_their_own() -> None:
    media = tuple(Media(kind="image", source="a", param=f"inputs[{i}]") for i in range(MOST_MEDIA + 1))
    assert refused(Chat(turns=(turn(*media),)), 1 << 20).param == f"inputs[{MOST_MEDIA}]"
    check_pieces(Chat(turns=(turn(*media[1:]),)), "inputs", 1 << 20)
    check_pieces(RawPrompt(text="x"), "prompt", 16)


def test_a_prompt_leaves_room_for_a_token() -> None:
    assert room_for(9, 10, "inputs") == 1
    with pytest.raises(Refusal) as caught:
        room_for(10, 10, "inputs")
    assert caught.value.code == "context_length_exceeded"


def test_ids_are_words_of_the_vocabulary() -> None:
    check_ids(RawPrompt(ids=(0, 399)), INFO, "prompt")
    check_ids(RawPrompt(text="a"), INFO, "prompt")
    check_ids(chat_of("text"), INFO, "prompt")
    for ids, said in (((0, 400), "ids 0 to 399, not 400"), ((1, 9, 7), "the token id 7 marks media")):
        with pytest.raises(Refusal, match=said) as caught:
            check_ids(RawPrompt(ids=ids), INFO, "prompt[1]")
        assert caught.value.param == "prompt[1]"
