"""POST /tokenize: a chat of either dialect, and the counts of its prompt."""

import json
from typing import Any

import msgspec
import numpy as np
import pytest

from server.http.routes import tokenize
from server.http.routes.tokenize import token_counts
from server.requests.refusal import Refusal
from server.requests.sampling import SamplingRequest
from tests.server.doubles import prepared
from tests.server.http.request_bodies import native, openai, read_native, read_openai, read_tokenize, refusal
from tests.server.tables import each_of
from tokenization.chat.errors import ChatError
from tokenization.chat.parts import Kind, RawPrompt
from tokenization.messages import MediaItem
from tokenization.text.bpe import BPETokenizer


def test_tokenize_reads_both_dialects() -> None:
    assert read_tokenize(openai(model="m")).model == "m"
    assert read_tokenize(openai()).chat == read_openai(openai()).chat
    assert read_tokenize(b'[{"text": "Hi"}]').chat == read_native(native()).chat
    assert (read_tokenize(openai()).chat_param, read_tokenize(native()).chat_param) == ("messages", "inputs")


def item(kind: Kind, *spans: tuple[int, int]) -> MediaItem:
    return MediaItem(kind=kind, spans=spans, grid=(1, 2, 2))


def test_a_chat_is_counted_as_its_own_route_reads_it() -> None:
    parts = [{"type": "image_url", "image_url": {"url": "data:,"}}, {"type": "text", "text": "Hi"}]
    messages = openai(messages=[{"role": "developer", "content": "x"}, {"role": "user", "content": parts}])
    assert read_tokenize(messages).chat == read_openai(messages).chat
    inputs = native(system="x", history=[{"inputs": [{"image": "data:,"}], "text": "B"}], model="tiny")
    assert read_tokenize(inputs) == read_native(inputs)


def test_messages_are_counted_without_their_parameters() -> None:
    """A client may send what it would send to /v1/chat/completions."""
    body = read_tokenize(openai(stream=True, stream_options={"include_usage": True}, temperature=-1, max_tokens=5))
    assert (body.sampling, body.stream, body.include_usage, body.model) == (SamplingRequest(), False, False, None)


def test_messages_win_over_inputs() -> None:
    body = read_tokenize(openai(inputs=[{"text": "other"}]))
    assert body.chat == read_openai(openai()).chat


def test_null_says_nothing() -> None:
    assert read_tokenize(openai(prompt=None)) == read_tokenize(openai())
    assert read_tokenize(openai(messages=None, prompt="Hi")).chat == RawPrompt(text="Hi")
    assert refusal(read_tokenize, openai(messages=None, prompt=None)).param == "messages"


@each_of("messages", [None, 3, "Hi", {}])
def test_messages_must_be_a_list(messages: Any) -> None:
    error = refusal(read_tokenize, openai(messages=messages))
    assert (error.kind, error.message, error.param) == ("invalid_request", "must be a list", "messages")


@each_of(
    ("raw", "param"),
    [
        (b"{}", "inputs"),
        (b"[]", "inputs"),
        (b'{"inputs": [{"sound": "x"}]}', "inputs[0]"),
        (b'{"messages": []}', "messages"),
        (b'{"messages": [{"role": "user", "content": 3}]}', "messages[0].content"),
    ],
)
def test_what_is_wrong_inside_a_chat_is_named_in_its_dialect(raw: bytes, param: str) -> None:
    with pytest.raises(ChatError) as caught:
        read_tokenize(raw)
    assert caught.value.param == param


def test_what_the_native_dialect_does_not_know_is_refused_here_too() -> None:
    error = refusal(read_tokenize, native(temperature=1))
    assert (error.param, error.code) == ("temperature", "unknown_field")
    error = refusal(read_tokenize, native(parameters={"temperature": -1}))
    assert error.param == "parameters.temperature"


def test_each_medium_is_counted_over_all_its_runs_of_pads() -> None:
    """A video has a run for each of its frames; what stands between them is text."""
    media = (item("image", (1, 2)), item("video", (4, 3), (8, 3), (12, 1)), item("audio", (14, 5)))
    counts = token_counts(msgspec.structs.replace(prepared("r", 20), media=media), 100)
    assert counts["media"] == [
        {"kind": "image", "tokens": 2},
        {"kind": "video", "tokens": 7},
        {"kind": "audio", "tokens": 5},
    ]
    assert (counts["count"], counts["max_model_len"]) == (20, 100)


def test_ids_are_whole_numbers_that_json_has() -> None:
    found = msgspec.structs.replace(prepared("r", 3), input_ids=np.array([5, 151_655, 2], np.int64))
    expected = {"ids": [5, 151_655, 2], "count": 3, "media": [], "max_model_len": 9}
    vllms = {"tokens": expected["ids"], "token_strs": None}
    assert json.loads(json.dumps(token_counts(found, 9))) == {**expected, **vllms}


def body(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def test_a_text_is_counted_without_a_template() -> None:
    asked = tokenize.read_tokenize(body(prompt="Hi", add_special_tokens=True, return_token_strs=True, model="m"), "r1")
    assert asked.request.chat == RawPrompt(text="Hi") and asked.request.chat_param == "prompt"
    assert asked.spelled and asked.model == "m" and asked.request.id == "r1"
    assert not tokenize.read_tokenize(body(prompt="Hi"), "r1").spelled
    bare = tokenize.read_tokenize(body(prompt="Hi", add_special_tokens=False), "r1")
    assert bare.request.chat == RawPrompt(text="Hi", opens=False)
    assert tokenize.read_tokenize(openai(return_token_strs=True), "r1").spelled


@each_of(
    ("fields", "param"),
    [
        ({"prompt": ""}, "prompt"), ({"prompt": ["a"]}, "prompt"), ({"prompt": [1]}, "prompt"),
        ({"prompt": "a", "messages": []}, "prompt"), ({"prompt": "a", "return_token_strs": 1}, "return_token_strs"),
        ({"messages": [], "return_token_strs": "yes"}, "return_token_strs"),
        ({"prompt": "a", "add_special_tokens": "yes"}, "add_special_tokens"),
        ({"prompt": "a", "truncate_prompt_tokens": 1}, "truncate_prompt_tokens"),
    ],
)  # fmt: skip
def test_a_text_that_cannot_be_counted_is_refused(fields: dict[str, Any], param: str) -> None:
    assert refusal(read_tokenize, body(**fields)).param == param


def test_tokens_are_spelled_where_that_is_asked_for(tokenizer: BPETokenizer) -> None:
    ids = tokenizer.encode("Hi <|im_end|>")
    found = msgspec.structs.replace(prepared("r", len(ids)), input_ids=np.array(ids, np.int64))
    answer = token_counts(found, 9, tokenizer)
    assert "".join(answer["token_strs"]) == "HiĠ<|im_end|>" and answer["tokens"] == answer["ids"] == ids
    assert token_counts(found, 9)["token_strs"] is None


def test_ids_become_text_again(tokenizer: BPETokenizer) -> None:
    special = tokenizer.special["<|im_end|>"]
    asked = tokenize.read_detokenize(body(tokens=[*tokenizer.encode("Hi 你"), special]), "r1")
    assert tokenize.detokenized(asked, tokenizer, 9999, 99) == {"prompt": "Hi 你<|im_end|>"}
    cut = tokenize.read_detokenize(body(tokens=tokenizer.encode("你")[:1]), "r1")
    assert tokenize.detokenized(cut, tokenizer, 9999, 99)["prompt"].endswith("\ufffd")


@each_of(
    ("tokens", "param"),
    [(None, "tokens"), ([], "tokens"), ("ab", "tokens"), ([1, "a"], "tokens[1]"), ([-1], "tokens[0]")],
)
def test_what_are_no_ids_is_refused(tokens: Any, param: str) -> None:
    with pytest.raises(Refusal) as caught:
        tokenize.read_detokenize(body(tokens=tokens), "r1")
    assert caught.value.param == param


def test_ids_are_bounded_in_value_and_number(tokenizer: BPETokenizer) -> None:
    asked = tokenize.read_detokenize(body(tokens=[1, 2, 3]), "r1")
    for vocab_size, length, said in (
        (3, 9, "3 token ids from 0 on, not 3"),
        (9, 2, "holds 3 ids; this server takes 2"),
    ):
        with pytest.raises(Refusal, match=said):
            tokenize.detokenized(asked, tokenizer, vocab_size, length)
    with pytest.raises(Refusal):
        tokenize.read_detokenize(b"[1]", "r1")
