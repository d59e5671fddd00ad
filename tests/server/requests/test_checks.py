"""What a chat may hold, as multiples that a client can compute; and which ids a prompt has."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from model.engine.messages import EngineReady
from server.requests.checks import FEWEST_PIECES, MOST_MEDIA, check_chat, room_for
from server.requests.refusal import Refusal
from server.requests.request import ChatRequest
from tests.server.doubles import card, chat_of
from tests.tables import each_of
from tokenization.chat.parts import Chat, Media, Prompt, RawPrompt, Text, ToolCall, Turn
from tokenization.text.bpe import BPETokenizer

INFO = EngineReady(
    device="cpu", dtype="float32", vocab_size=400, kv_blocks=1, block_size=1, memory=(), media_ids=(7, 9),
    max_media_tokens=1,
)  # fmt: skip


Check = Callable[..., None]


def turn(*parts: Any, calls: int = 0) -> Turn:
    call = ToolCall(id=None, name="f", arguments="{}", size=0, param="")
    return Turn(role="user", parts=parts, plain=False, tool_calls=(call,) * calls)


@pytest.fixture
def check(tokenizer: BPETokenizer) -> Check:
    """A chat of a model that takes pictures and videos, as a body's `inputs`."""
    model = replace(card(tokenizer), modalities=frozenset({"image", "video"}))

    def check(chat: Prompt, max_model_len: int = 16, param: str = "inputs") -> None:
        check_chat(ChatRequest(id="r", chat=chat, chat_param=param), model, max_model_len, INFO)

    return check


def refused(check: Check, chat: Prompt, max_model_len: int = 16) -> Refusal:
    with pytest.raises(Refusal) as caught:
        check(chat, max_model_len)
    assert caught.value.code == "too_many_parts"
    return caught.value


@each_of(
    "turns",
    [
        (turn(),) * (FEWEST_PIECES + 1),
        (turn(*[Text(text="")] * FEWEST_PIECES),),
        (turn(calls=FEWEST_PIECES),),
        (turn(Media(kind="video", source="", param="", frames=("data:,",) * FEWEST_PIECES)),),
    ],
)
def test_turns_parts_calls_and_frames_are_counted_together(check: Check, turns: tuple[Turn, ...]) -> None:
    assert refused(check, Chat(turns=turns)).param == "inputs"
    check(Chat(turns=turns), FEWEST_PIECES * 2)
    fewer = turns[:-1] if len(turns) > 1 else (turn(Text(text="x")),)
    check(Chat(turns=fewer))


def test_media_have_a_bound_of_their_own(check: Check) -> None:
    media = tuple(Media(kind="image", source="a", param=f"inputs[{i}]") for i in range(MOST_MEDIA + 1))
    assert refused(check, Chat(turns=(turn(*media),)), 1 << 20).param == f"inputs[{MOST_MEDIA}]"
    check(Chat(turns=(turn(*media[1:]),)), 1 << 20)
    check(RawPrompt(text="x"))


def test_too_many_media_are_refused_before_any_is_fetched(tokenizer: BPETokenizer) -> None:
    """Where the model's window may drop turns, a worker alone knows how many are left."""
    request = ChatRequest(id="r", chat=chat_of("text", "image", "image", "image"), chat_param="inputs")
    with pytest.raises(Refusal, match="3 media items, at most 2 are allowed") as caught:
        check_chat(request, replace(card(tokenizer), max_items=2), 99, INFO)
    assert (caught.value.param, caught.value.code) == ("inputs[3]", None)
    for most in (3, None):
        check_chat(request, replace(card(tokenizer), max_items=most), 99, INFO)


def test_a_modality_that_the_model_lacks_is_named_with_those_that_it_takes(check: Check) -> None:
    """In one place, before a worker hears of it: none opens a file."""
    check(chat_of("image", "text", "video"))
    with pytest.raises(Refusal) as caught:
        check(chat_of("image", "audio"))
    assert (caught.value.param, caught.value.code) == ("inputs[1]", "unsupported_modality")
    assert caught.value.message == "this model does not take audio (it takes text, image, video)"


def test_a_prompt_leaves_room_for_a_token() -> None:
    assert room_for(9, 10, "inputs") == 1
    with pytest.raises(Refusal) as caught:
        room_for(10, 10, "inputs")
    assert caught.value.code == "context_length_exceeded"


def test_ids_are_words_of_the_vocabulary(check: Check) -> None:
    check(RawPrompt(ids=(0, 399)))
    check(RawPrompt(text="a"))
    check(chat_of("text"))
    for ids, said in (((0, 400), "400 token ids from 0 on, not 400"), ((1, 9, 7), "the token id 7 marks media")):
        with pytest.raises(Refusal, match=said) as caught:
            check(RawPrompt(ids=ids), param="prompt[1]")
        assert caught.value.param == "prompt[1]"
