"""POST /v1/completions: the forms of a prompt, what a body may hold, and the answer whole and as chunks."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from model.engine.messages import Token
from server.http.routes.completions import MAX_PROMPTS, TextRequest, TextSerializer, read_completions
from server.metrics import Metrics
from server.request_context import ModelTimings
from server.requests.answer import Delta
from server.requests.refusal import Refusal
from tests.server.doubles import card, prepared
from tests.server.http.answers import DELTAS, answered, joined, parse
from tests.server.tables import each_of
from tokenization.chat.parts import RawPrompt
from tokenization.text.bpe import BPETokenizer


def read(**fields: Any) -> TextRequest:
    return read_completions(json.dumps({"prompt": "Hi", **fields}).encode(), "r1")


def refused(**fields: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        read(**fields)
    return caught.value


def serializer(tokenizer: BPETokenizer, **fields: Any) -> TextSerializer:
    request = read(**fields)
    written = TextSerializer(request, card(tokenizer), fingerprint="fp_1")
    written.accepted([prepared(one.id, 3) for one in request.requests])
    for _ in request.requests:
        ModelTimings(Metrics("tiny", "1"), written._asked.context)
    return written


def events(written: TextSerializer, deltas: Sequence[Delta]) -> list[bytes | dict[str, Any]]:
    """What stands in a stream for these."""
    return [event for event in (written.event(prepared("r1", 3), delta) for delta in deltas) if event]


def used(n_prompt: int, n_tokens: int, cached: int = 0) -> dict[str, Any]:
    details = {"cached_tokens": cached}
    return {
        "prompt_tokens": n_prompt, "completion_tokens": n_tokens, "total_tokens": n_prompt + n_tokens,
        "prompt_tokens_details": details,
    }  # fmt: skip


@each_of(
    ("prompt", "read_as"),
    [
        ("Hi", [RawPrompt(text="Hi")]),
        (["Hi", "you"], [RawPrompt(text="Hi"), RawPrompt(text="you")]),
        ([1, 2], [RawPrompt(ids=(1, 2))]),
        ([[1, 2], [3]], [RawPrompt(ids=(1, 2)), RawPrompt(ids=(3,))]),
    ],
)
def test_a_prompt_has_four_forms(prompt: Any, read_as: list[RawPrompt]) -> None:
    requests = read(prompt=prompt).requests
    assert [request.chat for request in requests] == read_as
    if len(requests) == 1:
        assert (requests[0].id, requests[0].chat_param) == ("r1", "prompt")
    else:
        assert [(r.id, r.chat_param) for r in requests] == [("r1-0", "prompt[0]"), ("r1-1", "prompt[1]")]


@each_of(
    ("prompt", "param"),
    [
        (None, "prompt"), ("", "prompt"), ([], "prompt"), (7, "prompt"), ({"text": "a"}, "prompt"),
        (["a", ""], "prompt[1]"), (["a", 1], "prompt[1]"), ([[1], []], "prompt[1]"), ([1, "a"], "prompt[1]"),
        ([1, -1], "prompt[1]"), ([[1], [2, True]], "prompt[1][1]"), ([1, 2.5], "prompt[1]"), ([1 << 40], "prompt[0]"),
        (["a"] * (MAX_PROMPTS + 1), "prompt"),
    ],
)  # fmt: skip
def test_another_prompt_is_refused_by_its_place(prompt: Any, param: str) -> None:
    error = refused(prompt=prompt)
    assert (error.kind, error.param) == ("invalid_request", param)
    assert error.message.startswith(param)


def test_a_short_answer_is_the_default() -> None:
    assert read().requests[0].sampling.max_tokens == 16
    assert read(max_tokens=None).requests[0].sampling.max_tokens == 16
    assert read(max_tokens=3, temperature=0.5, n=2, stop="x").requests[0].sampling.n == 2
    assert refused(min_tokens=17).param == "min_tokens"


@each_of(
    ("fields", "param"),
    [
        ({"suffix": "x"}, "suffix"), ({"best_of": 2}, "best_of"), ({"best_of": 3, "n": 2}, "best_of"),
        ({"prompt_embeds": "x"}, "prompt_embeds"), ({"use_beam_search": True}, "use_beam_search"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"), ({"top_logprobs": 1}, "top_logprobs"),
        ({"logprobs": 21}, "logprobs"), ({"logprobs": -1}, "logprobs"), ({"logprobs": True}, "logprobs"),
        ({"max_tokens": 0}, "max_tokens"), ({"max_tokens": 0, "echo": False}, "max_tokens"), ({"echo": 1}, "echo"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"truncate_prompt_tokens": 3}, "truncate_prompt_tokens"),
        ({"max_completion_tokens": 3, "max_tokens": 3}, "max_completion_tokens"),
    ],
)  # fmt: skip
def test_what_would_change_the_answer_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    assert refused(**fields).param == param


def test_neutral_and_foreign_fields_pass() -> None:
    plain = read()
    assert read(suffix="", best_of=1, user="me", add_special_tokens=True, echo=False, messages=None) == plain
    assert read(best_of=2, n=2) == read(n=2)


def test_what_a_vocabulary_puts_in_front_may_be_left_out() -> None:
    assert read(prompt="Hi", add_special_tokens=False).requests[0].chat == RawPrompt(text="Hi", opens=False)
    assert refused(add_special_tokens="no").param == "add_special_tokens"


def test_the_number_of_logprobs_is_one_parameter() -> None:
    sampling = read(logprobs=0).requests[0].sampling
    assert sampling.logprobs and sampling.top_logprobs == 0
    assert read(logprobs=5).requests[0].sampling.top_logprobs == 5
    assert not read().requests[0].sampling.logprobs
    assert read(logprobs=1, echo=True).requests[0].scores_prompt
    assert not read(logprobs=1).requests[0].scores_prompt and not read(echo=True).requests[0].scores_prompt


@each_of("fields", [{}, {"logprobs": 1}, {"echo": True}, {"echo": True, "logprobs": 1}])
def test_chunks_join_to_the_whole(tokenizer: BPETokenizer, fields: dict[str, Any]) -> None:
    deltas = list(DELTAS)
    if fields.get("echo") and fields.get("logprobs"):
        scores = (Token(id=1, logprob=-4.0), Token(id=2, logprob=-5.0))
        deltas[0] = Delta(text=deltas[0].text, tokens=deltas[0].tokens, prompt=scores)
    whole = answered(serializer(tokenizer, **fields), prepared("r1", 3), [joined(deltas)])
    chunked = serializer(tokenizer, stream=True, stream_options={"include_usage": True}, **fields)
    chunks = [parse(event) for event in events(chunked, deltas)]
    assert all(chunk["usage"] is None and chunk["object"] == "text_completion" for chunk in chunks)
    (choice,) = whole["choices"]
    choices = [chunk["choices"][0] for chunk in chunks]
    assert "".join(c["text"] for c in choices) == choice["text"]
    assert choice["text"] == ("Hi" if "echo" in fields else "") + "".join(delta.text for delta in deltas)
    assert choices[-1]["finish_reason"] == choice["finish_reason"] == "stop"
    if "logprobs" in fields:
        for key, values in choice["logprobs"].items():
            assert [value for c in choices for value in c["logprobs"][key]] == values, key
        assert len({len(values) for values in choice["logprobs"].values()}) == 1
        assert len(choice["logprobs"]["tokens"]) == (6 if "echo" in fields else 3)
    else:
        assert choice["logprobs"] is None
    last = parse(chunked.closing(prepared("r1", 3), 3))
    assert last["choices"] == [] and last["usage"] == whole["usage"]
    assert whole["usage"] == used(3, 3)
    assert whole["system_fingerprint"] == "fp_1" and whole["id"] == "cmpl-r1"


def test_nothing_predicts_the_first_token_of_a_prompt(tokenizer: BPETokenizer) -> None:
    scores = (Token(id=66, logprob=float("-inf"), top=((65, -0.1),)), Token(id=67, logprob=-2.0))
    answer = Delta(text="D", tokens=(Token(id=68, logprob=-3.0),), finish="length", prompt=scores)
    written = serializer(tokenizer, prompt=[65, 66, 67], echo=True, logprobs=1)
    logprobs = answered(written, prepared("r1", 3), [answer])["choices"][0]["logprobs"]
    assert logprobs["token_logprobs"] == [None, -9999.0, -2.0, -3.0], "JSON has no infinity"
    text = [tokenizer.token_bytes(i).decode() for i in (65, 66, 68)]
    assert logprobs["top_logprobs"][:2] == [None, {text[0]: -0.1, text[1]: -9999.0}]
    assert logprobs["top_logprobs"][3] == {text[2]: -3.0}
    assert logprobs["text_offset"][0] == 0 and logprobs["tokens"][3] == text[2]


def test_without_an_answer_the_prompt_alone_comes_back(tokenizer: BPETokenizer) -> None:
    request = read(echo=True, max_tokens=0, logprobs=0)
    assert request.requests[0].sampling.max_tokens == 1, "the engine has no step without a token"
    written = serializer(tokenizer, echo=True, max_tokens=0, logprobs=0)
    answer = Delta(text="x", tokens=(Token(id=9, logprob=-1.0),), finish="length", prompt=(Token(id=1, logprob=-1.0),))
    whole = answered(written, prepared("r1", 2), [answer])
    assert whole["choices"][0]["text"] == "Hi" and len(whole["choices"][0]["logprobs"]["tokens"]) == 2
    assert whole["usage"]["completion_tokens"] == 0


def test_each_prompt_stands_before_its_own_choices(tokenizer: BPETokenizer) -> None:
    written = serializer(tokenizer, prompt=["Hi", "you"], n=2, echo=True)
    answers = [Delta(index=i, text=str(i), tokens=(Token(id=1),), finish="length") for i in range(4)]
    written._asked.context.cached_tokens = 5  # of both prompts
    whole = answered(written, prepared("r1"), answers)
    assert [(c["index"], c["text"]) for c in whole["choices"]] == [(0, "Hi0"), (1, "Hi1"), (2, "you2"), (3, "you3")]
    assert whole["usage"] == used(6, 4, 5)


def test_the_first_token_is_a_chunk_even_without_text(tokenizer: BPETokenizer) -> None:
    written = serializer(tokenizer, stream=True, n=2)
    silent = [Delta(text="", tokens=(Token(id=1),), index=index) for index in (0, 1)]
    assert [parse(event)["choices"][0]["index"] for event in events(written, silent)] == [0, 1]
    assert events(written, silent) == []


def test_usage_with_every_chunk(tokenizer: BPETokenizer) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    written = serializer(tokenizer, stream=True, stream_options=options)
    deltas = [Delta(text="a", tokens=(Token(id=1),)), Delta(text="", tokens=(Token(id=2),)),
              Delta(text="b", tokens=(Token(id=3),), finish="length")]  # fmt: skip
    assert [parse(event)["usage"]["completion_tokens"] for event in events(written, deltas)] == [1, 3]
    assert not serializer(tokenizer, stream=True).closing(prepared("r1"), 3)
    written = serializer(tokenizer, stream=True, n=2, stream_options=options)
    both = [replace(delta, index=index) for delta in deltas[::2] for index in (0, 1)]
    counted = [parse(event)["usage"] for event in events(written, both)]
    assert counted == [used(3, n) for n in (1, 1, 2, 2)], "of its own choice"
    assert parse(written.closing(prepared("r1"), 2))["usage"] == used(3, 4)
    written = serializer(tokenizer, stream=True, n=2, stream_options=options, prompt=["Hi", "you"])
    written.accepted([prepared("r1-0", 3), prepared("r1-1", 11)])
    for timings, n_cached in zip(written._asked.context.timings, (2, 8), strict=True):
        timings.scheduled(None, "first", n_cached)
    counted = [parse(event)["usage"] for event in events(written, [replace(deltas[0], index=i) for i in range(4)])]
    assert counted == [used(3, 1, 2), used(3, 1, 2), used(11, 1, 8), used(11, 1, 8)], "and of its own prompt"
    assert parse(written.closing(prepared("r1"), 2))["usage"] == used(14, 4, 10), "of all"


def test_ids_are_shown_where_they_are_asked_for(tokenizer: BPETokenizer) -> None:
    deltas = [Delta(text="a", tokens=(Token(id=65),)), Delta(text="", tokens=(Token(id=66),)),
              Delta(text="b", tokens=(Token(id=67),), finish="length")]  # fmt: skip
    whole = answered(serializer(tokenizer, return_token_ids=True), prepared("r1", 3), [joined(deltas)])
    choice = whole["choices"][0]
    assert choice["prompt_token_ids"] == [0, 1, 2] and choice["token_ids"] == [65, 66, 67]
    chunked = serializer(tokenizer, return_token_ids=True, stream=True)
    choices = [parse(event)["choices"][0] for event in events(chunked, deltas)]
    assert [c["token_ids"] for c in choices] == [[65], [66], [67]], "also of a token without text"
    assert [c.get("prompt_token_ids") for c in choices] == [[0, 1, 2], None, None]
    echoed = answered(serializer(tokenizer, return_token_ids=True, echo=True, max_tokens=0), prepared("r1"), deltas[2:])
    assert echoed["choices"][0]["token_ids"] == []
    plain = answered(serializer(tokenizer), prepared("r1", 3), [joined(deltas)])["choices"][0]
    assert "token_ids" not in plain and "prompt_token_ids" not in plain


def test_a_token_may_be_named_by_its_id(tokenizer: BPETokenizer) -> None:
    written = serializer(tokenizer, logprobs=1, return_tokens_as_token_ids=True)
    named = answered(written, prepared("r1", 3), [joined(DELTAS)])["choices"][0]["logprobs"]
    spelled = answered(serializer(tokenizer, logprobs=1), prepared("r1", 3), [joined(DELTAS)])["choices"][0]["logprobs"]
    assert named["tokens"][:2] == ["token_id:65", "token_id:151"]
    assert set(named["top_logprobs"][0]) == {"token_id:65", "token_id:66"}
    assert named["text_offset"] == spelled["text_offset"], "places in the text"
