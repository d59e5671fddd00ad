"""What both dialects write alike: the counts of tokens, and how a token is spelled beside its log-probability."""

from typing import Any

import msgspec
import numpy as np

from model.engine.messages import Token
from server.http.routes.answer_fields import (
    legacy_logprobs,
    logprob_entries,
    prompt_ids,
    system_fingerprint,
    usage,
)
from server.metrics import Metrics
from server.request_context import ModelTimings, RequestContext
from tests.server.doubles import prepared
from tests.server.http.answers import ACCEPTED, DELTAS, TOKENS, answered, collected, completion
from tests.server.tables import each_of
from tokenization.chat.parts import Kind
from tokenization.messages import MediaItem
from tokenization.placeholders import Spans
from tokenization.text.bpe import BPETokenizer


def test_usage_and_entries(tokenizer: BPETokenizer) -> None:
    serializer = completion(tokenizer, logprobs=True)
    whole = answered(serializer, ACCEPTED, collected(DELTAS))
    assert whole["usage"]["prompt_tokens"] == 10 and whole["usage"]["completion_tokens"] == 3
    assert whole["usage"]["total_tokens"] == 13 and whole["usage"]["prompt_tokens_details"] == {
        "image_tokens": 4,
        "cached_tokens": 0,
    }
    first, part, unknown = whole["choices"][0]["logprobs"]["content"]
    spelled = tokenizer.token_bytes(65)
    assert first["token"] == spelled.decode() and first["bytes"] == list(spelled) and len(first["top_logprobs"]) == 2
    assert part["bytes"] == list(tokenizer.token_bytes(151))
    assert unknown == {"token": "", "logprob": -3.0, "bytes": [], "top_logprobs": []}


@each_of(
    ("spans", "details"),
    [
        ({}, {"image_tokens": 0}),
        ({"image": ((0, 7),), "video": ((7, 3), (12, 2))}, {"image_tokens": 7, "video_tokens": 5}),
        ({"audio": ((0, 12),)}, {"image_tokens": 0, "audio_tokens": 12}),
        (
            {"image": ((0, 4),), "video": ((5, 5),), "audio": ((10, 1), (12, 2))},
            {"image_tokens": 4, "video_tokens": 5, "audio_tokens": 3},
        ),
    ],
)
def test_each_medium_is_counted_by_itself(spans: dict[Kind, Spans], details: dict[str, int]) -> None:
    media = tuple(MediaItem(kind=kind, spans=runs, grid=(1, 2, 2)) for kind, runs in spans.items())
    counts = usage(msgspec.structs.replace(prepared("chat-1", 20), media=media), 2, RequestContext(cached_tokens=16))
    assert counts["prompt_tokens_details"] == {**details, "cached_tokens": 16}
    assert (counts["prompt_tokens"], counts["completion_tokens"], counts["total_tokens"]) == (20, 2, 22)


def test_seconds_of_stages_stand_in_usage_where_they_were_asked_for() -> None:
    counts = usage(ACCEPTED, 3, RequestContext())
    context = RequestContext(wants_timings=True)
    assert usage(ACCEPTED, 3, context, so_far=True) == counts
    timings = ModelTimings(Metrics("tiny", "1.2.3"), context)
    timings.prepared, timings.placed = context.received + 1, context.received + 1.12345678
    assert usage(ACCEPTED, 3, context) == {**counts, "timings": {"prepare": 1.0, "queue": 0.123457}}


def test_alternatives_are_spelled_in_their_order(tokenizer: BPETokenizer) -> None:
    (entry,) = logprob_entries(TOKENS[:1], tokenizer)
    alternatives: list[dict[str, Any]] = [
        {"token": "b", "logprob": -0.5, "bytes": [98]},
        {"token": "c", "logprob": -1.0, "bytes": [99]},
    ]
    assert entry == {**alternatives[0], "top_logprobs": alternatives}


def test_half_a_character_is_readable_and_its_bytes_exact(tokenizer: BPETokenizer) -> None:
    (entry,) = logprob_entries([Token(id=151, logprob=-2.0)], tokenizer)
    assert (entry["token"], entry["bytes"]) == ("\ufffd", [0xDB])


def test_tokens_without_a_probability_have_entries_too(tokenizer: BPETokenizer) -> None:
    assert [entry["logprob"] for entry in logprob_entries([Token(id=65), Token(id=66)], tokenizer)] == [None, None]


def test_a_token_may_be_named_by_its_id(tokenizer: BPETokenizer) -> None:
    (entry,) = logprob_entries(TOKENS[:1], tokenizer, as_ids=True)
    assert [entry["token"], *(top["token"] for top in entry["top_logprobs"])] == [
        "token_id:65", "token_id:65", "token_id:66",
    ]  # fmt: skip
    assert entry["bytes"] == list(tokenizer.token_bytes(65)), "the bytes stay those of the token"


def test_the_ids_of_a_prompt_hold_pads_and_no_words_of_shared_memory() -> None:
    words = msgspec.structs.replace(
        prepared("chat-1", 9),
        input_ids=np.array([1, -5, -6, 9, 2, -7, -8, 7, 3]),
        media=(
            MediaItem(kind="image", spans=((1, 3),), grid=(1, 2, 2)),
            MediaItem(kind="audio", spans=((5, 1), (6, 1)), grid=(1, 1, 8)),
        ),
    )
    assert prompt_ids(words, {"image": 9, "audio": 8}) == [1, 9, 9, 9, 2, 8, 8, 7, 3]
    assert words.input_ids[1] == -5, "the engine still reads its words"


def test_the_older_form_of_logprobs(tokenizer: BPETokenizer) -> None:
    found = {name: list(rows) for name, rows in legacy_logprobs(TOKENS, tokenizer, 7).items()}
    spelled = [tokenizer.token_bytes(token.id).decode("utf-8", "replace") for token in TOKENS]
    assert found["tokens"] == spelled and found["token_logprobs"] == [-0.5, -2.0, -3.0]
    assert found["text_offset"] == [7, 7 + len(spelled[0]), 7 + len(spelled[0]) + len(spelled[1])]
    assert found["top_logprobs"] == [
        {tokenizer.token_bytes(i).decode(): p for i, p in TOKENS[0].top}, {spelled[1]: -2.0}, {"": -3.0},
    ]  # fmt: skip


def test_the_token_itself_stands_before_the_likeliest(tokenizer: BPETokenizer) -> None:
    token = msgspec.structs.replace(TOKENS[1], logprob=-2.0, top=((TOKENS[0].id, -0.25), (TOKENS[1].id, -2.0)))
    [row] = legacy_logprobs([token], tokenizer, 0, as_ids=True)["top_logprobs"]
    assert list(row.items()) == [(f"token_id:{TOKENS[1].id}", -2.0), (f"token_id:{TOKENS[0].id}", -0.25)]


def test_a_fingerprint_is_that_of_version_model_and_dtype() -> None:
    ours = ("0.1.0", "tiny", "float32")
    assert system_fingerprint(*ours) == system_fingerprint(*ours)
    others = [("0.2.0", *ours[1:]), ("0.1.0", "big", "float32"), ("0.1.0", "tiny", "bfloat16"), ("0.1", "0tiny", "x")]
    assert len({system_fingerprint(*other) for other in (ours, *others)}) == 5
