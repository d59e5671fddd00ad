"""What a body asks for: never less than is made of it, refused by name, and what was too much before still is."""

import asyncio
import json
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from configs.serve import HttpConfig
from model.engine.messages import Token, TokenEvent
from server.http.responses import Serializer, written
from server.http.routes.chat_completions import CompletionSerializer, read_openai
from server.http.routes.completions import MAX_PROMPTS, TextSerializer, read_completions
from server.http.routes.native import NativeSerializer, read_native
from server.http.routes.responses_body import read_responses
from server.request_context import RequestContext
from server.requests.answer import Answer, Delta
from server.requests.checks import Sums, check_sums, sums_of
from server.requests.model_card import CHAR, RequestLimits, widest
from server.requests.refusal import Refusal
from server.requests.request import ChatRequest
from server.requests.sampling import MAX_ALLOWED, MAX_BAD_WORDS, MAX_WORD_CHARS
from tests.server.doubles import card, prepared
from tests.server.tables import each_of
from tokenization.chat.parts import RawPrompt
from tokenization.text.bpe import BPETokenizer

ROOM = 32768
DEFAULTS = HttpConfig()
WIDE = RequestLimits(
    tokens=DEFAULTS.max_asked_tokens, nbytes=DEFAULTS.max_asked_bytes, text=128, spelled=511
)  # 128 blanks are a token of Qwen2's


def completions(**fields: Any) -> tuple[ChatRequest, ...]:
    return read_completions(json.dumps({"prompt": "Hi", **fields}).encode(), "r").requests


def chat(**fields: Any) -> list[ChatRequest]:
    return [read_openai(json.dumps({"messages": [{"role": "user", "content": "x"}], **fields}).encode(), "r")]


def native(**fields: Any) -> list[ChatRequest]:
    return [read_native(json.dumps({"inputs": [{"text": "x"}], "parameters": fields}).encode(), "r")]


def refused(requests: Any, room: int = ROOM, limits: RequestLimits = WIDE, **known: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        check_sums(requests, room, limits, **known)
    assert (caught.value.kind, caught.value.code) == ("invalid_request", "asks_too_much")
    return caught.value


def test_64_prompts_of_full_length_pass() -> None:
    for max_tokens in (1, 16, ROOM):
        requests = completions(prompt=["x"] * MAX_PROMPTS, max_tokens=max_tokens, echo=True)
        check_sums(requests, ROOM, WIDE)
        for length in (1, ROOM // 2, ROOM - 1):
            check_sums(requests, ROOM, WIDE, [length] * MAX_PROMPTS)
    check_sums(completions(prompt=[[7] * 8000] * MAX_PROMPTS, max_tokens=ROOM), ROOM, WIDE)


def test_ordinary_wishes_pass() -> None:
    check_sums(chat(logprobs=True, top_logprobs=20), ROOM, WIDE)
    check_sums(chat(n=8), ROOM, WIDE)
    check_sums(completions(prompt=["x" * 8000] * 64, echo=True, max_tokens=0, logprobs=0), ROOM, WIDE)
    words = ["word" * 4] * MAX_BAD_WORDS
    check_sums(completions(prompt=["x"] * 64, n=8, bad_words=words, stop=["s" * 1024] * 16), ROOM, WIDE)


@each_of(
    ("requests", "param", "asked"),
    [
        (chat(n=8, max_tokens=30000, logprobs=True, top_logprobs=20), "max_tokens", 8 * 30000 * 42 + 1),
        (chat(n=8, max_completion_tokens=30000, max_tokens=3, logprobs=True, top_logprobs=20), "max_completion_tokens",
         8 * 30000 * 42 + 1),
        (native(n=8, max_tokens=30000, logprobs=True, top_logprobs=20), "parameters.max_tokens", 8 * 30000 * 42 + 1),
        (native(n=8, logprobs=True, top_logprobs=20), "parameters.top_logprobs", 8 * 32767 * 42 + 1),
        (chat(n=8, max_tokens=6242, logprobs=True, top_logprobs=20), "max_tokens", 8 * 6242 * 42 + 1),
        (completions(prompt=["x"] * 64, n=8, max_tokens=30000), "max_tokens", 64 * (8 * 30000 + 1)),
        (
            completions(prompt=["é" * 900] * 64, n=8, echo=True, logprobs=5, max_tokens=1), "echo",
            64 * (1 + 8 * 901 * 12),
        ),
        (
            completions(prompt=[[7] * 900] * 64, n=8, echo=True, logprobs=5, max_tokens=1), "echo",
            64 * (900 + 8 * 901 * 12),
        ),
        (completions(prompt=["x"] * 64, n=8, logprobs=20, max_tokens=400), "max_tokens", 64 * (1 + 8 * 400 * 42)),
        (completions(prompt=["x"] * 64, n=8, logprobs=20, max_tokens=100, ), "max_tokens", 64 * (1 + 8 * 100 * 42)),
    ],
)  # fmt: skip
def test_too_many_tokens_are_refused_by_the_field_that_asks_for_most(requests: Any, param: str, asked: int) -> None:
    error = refused(requests)
    assert error.param == param and error.message.startswith(f"{param}: ")
    assert f" {asked} tokens" in error.message and f" {WIDE.tokens} " in error.message


@each_of(
    ("fields", "param"),
    [
        ({"bad_words": [f"{i:03d}" + "中" * (MAX_WORD_CHARS - 3) for i in range(MAX_BAD_WORDS)]}, "bad_words"),
        ({"allowed_token_ids": list(range(MAX_ALLOWED))}, "allowed_token_ids"),
        ({"echo": True, "n": 8, "prompt": ["x" * (1 << 18)] * 64}, "echo"),
    ],
)
def test_too_many_bytes_are_refused_by_the_field_that_asks_for_most(fields: dict[str, Any], param: str) -> None:
    requests = completions(**{"prompt": ["x"] * 64, "max_tokens": 1, **fields})
    error = refused(requests)
    assert error.param == param and f" {WIDE.nbytes} " in error.message and " bytes" in error.message
    check_sums(requests[:2], ROOM, WIDE)


def test_an_echoed_message_counts_for_each_answer() -> None:
    long = [{"role": "assistant", "content": "x" * (8 << 20)}]
    asked = {"messages": long, "continue_final_message": True, "max_tokens": 1}
    assert refused(chat(**asked, n=64, echo=True)).param == "echo"
    check_sums(chat(**asked, n=64), ROOM, WIDE)
    check_sums(chat(**asked, n=1, echo=True), ROOM, WIDE)


def test_what_is_only_known_later_is_counted_then() -> None:
    requests = completions(prompt=["x"] * 64, echo=True, logprobs=4, max_tokens=1)
    check_sums(requests, ROOM, WIDE)
    check_sums(requests, ROOM, WIDE, [2900] * 64)
    assert refused(requests, lengths=[4000] * 64).param == "prompt"
    assert refused(completions(prompt=["x"] * 64, bad_words=["x"]), bad_ids=1 << 20).param == "bad_words"


def test_a_limit_that_nothing_but_the_answer_exceeds_is_about_its_length() -> None:
    assert refused(chat(), limits=replace(WIDE, tokens=100)).param == "max_tokens"
    check_sums(chat(max_tokens=99), ROOM, replace(WIDE, tokens=100))


def test_a_response_counts_what_it_repeats() -> None:
    """Of a stream, each text five times and each log-probability twice, and three times what the body said."""

    def nbytes(**fields: Any) -> int:
        body = {"input": "Hi", "max_output_tokens": 100, **fields}
        return sums_of([read_responses(json.dumps(body).encode(), "r1").request], ROOM).counted(WIDE)[1]

    plain, streamed = nbytes(), nbytes(stream=True)
    assert streamed == plain + 4 * 100 * WIDE.text
    assert nbytes(instructions="x" * 1000) == plain + 1000 * CHAR
    assert nbytes(instructions="x" * 1000, stream=True) == streamed + 3 * 1000 * CHAR
    shown: Any = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
    assert nbytes(stream=True, **shown) - streamed == 2 * (nbytes(**shown) - plain)


WISHES = st.fixed_dictionaries(
    {
        "prompts": st.integers(1, 64), "n": st.integers(1, 8), "max_tokens": st.none() | st.integers(1, 40000),
        "top": st.none() | st.integers(0, 20), "echo": st.booleans(), "length": st.integers(1, 4000),
    }
)  # fmt: skip


@given(WISHES)
def test_what_was_too_many_log_probabilities_still_is(wishes: dict[str, Any]) -> None:
    """The bound that this one follows: prompts x n x max_tokens x (top_logprobs + 1) of 1,048,576."""
    if wishes["top"] is None:
        return
    answers = wishes["n"] * min(wishes["max_tokens"] or 16, ROOM)
    per_prompt = answers + (min(wishes["length"], ROOM) if wishes["echo"] else 0)
    if wishes["prompts"] * per_prompt * (wishes["top"] + 1) <= 1 << 20:
        return
    fields = {name: wishes[name] for name in ("n", "echo", "max_tokens") if wishes[name] is not None}
    refused(completions(prompt=["x" * wishes["length"]] * wishes["prompts"], logprobs=wishes["top"], **fields))


# ---- never less than what is made


LETTERS = st.text(alphabet='aé中🙂"\n\x01 ', min_size=1, max_size=6)
BODIES = st.fixed_dictionaries(
    {},
    optional={
        "n": st.integers(1, 3), "max_tokens": st.integers(1, 12), "include_stop_str_in_output": st.booleans(),
        "skip_special_tokens": st.booleans(), "stop": st.lists(LETTERS, max_size=2),
        "bad_words": st.lists(LETTERS.filter(str.strip), max_size=3), "stop_token_ids": st.lists(st.integers(0, 300)),
        "logit_bias": st.dictionaries(st.integers(0, 300).map(str), st.integers(-9, 9), max_size=3),
    },
)  # fmt: skip
PROMPTS = LETTERS | st.lists(st.integers(0, 255), min_size=1, max_size=4)
ROUTE = st.fixed_dictionaries(
    {"return_token_ids": st.booleans(), "return_tokens_as_token_ids": st.booleans(), "stream": st.booleans()}
)


def listed(value: Any) -> int:
    """Log-probabilities that stand in an answer's JSON, in either form."""
    if isinstance(value, list):
        return sum(map(listed, value))
    if not isinstance(value, dict):
        return 0
    if "token_logprobs" in value:
        own = sum(one is not None for one in value["token_logprobs"])
        return max(own, sum(len(one) for one in value["top_logprobs"] if one))
    return ("logprob" in value) + sum(map(listed, value.values()))


async def made(
    serializer: Serializer, requests: Any, lengths: list[int], room: int, tokenizer: BPETokenizer, rng: random.Random
) -> bytes:
    """A plain answer of as many tokens as may be, from the widest vocabulary's point of view at random."""
    sampling, found, first = requests[0].sampling, list[Delta](), None

    def token() -> Token:
        ids = [rng.randrange(tokenizer.vocab_size + 2) for _ in range(sampling.top_logprobs)]
        top = tuple((i, -rng.random() * 10 ** rng.randint(-300, 3)) for i in ids)
        return Token(id=rng.randrange(tokenizer.vocab_size + 2), logprob=-rng.random(), top=top)

    for p, (request, length) in enumerate(zip(requests, lengths, strict=True)):
        first = first or prepared(request.id, length)
        n_tokens = min(sampling.max_tokens or room, room - length)
        scores = tuple(token() for _ in range(length - 1)) if request.scores_prompt else ()
        for i in range(sampling.n):
            continues = isinstance(request.chat, RawPrompt)
            answer = Answer(tokenizer, sampling, p * sampling.n + i, continues=continues, streamed=False)
            for k in range(n_tokens):
                event = TokenEvent(request_id="r", token=token(), finish="length" if k == n_tokens - 1 else None)
                if (delta := answer.push([event])) is not None:
                    found.append(structs.replace(delta, prompt=() if i else scores))
                    break
    assert first is not None
    return b"".join(await written(serializer.whole(first, found, sum(len(one.tokens) for one in found))))


@settings(max_examples=120)
@given(
    body=BODIES, route=ROUTE, kind=st.sampled_from(["completions", "openai", "native"]), echo=st.booleans(),
    top=st.none() | st.integers(0, 3), prompts=st.lists(PROMPTS, min_size=1, max_size=3), seed=st.integers(0, 1 << 30),
)  # fmt: skip
def test_an_answer_never_holds_more_than_was_counted(
    tokenizer: BPETokenizer, body: dict[str, Any], route: dict[str, Any], kind: str, top: int | None, echo: bool,
    prompts: list[Any], seed: int,
) -> None:  # fmt: skip
    rng, room, model = random.Random(seed), 30, card(tokenizer)
    text, spelled = widest(tokenizer)
    limits = RequestLimits(tokens=1 << 40, nbytes=1 << 60, text=text, spelled=spelled)
    serializer: Serializer
    if kind == "completions":
        fields = {**body, **route, "prompt": prompts, "echo": echo, **({} if top is None else {"logprobs": top})}
        whole = read_completions(json.dumps(fields).encode(), "r")
        requests, serializer = list(whole.requests), TextSerializer(whole, model, fingerprint="fp_1")
        lengths = [len(p) if isinstance(p, list) else max(1, len(tokenizer.encode(p))) for p in prompts]
        serializer.accepted([prepared(one.id, n) for one, n in zip(requests, lengths, strict=True)])
    else:
        wishes = {**body, **({} if top is None else {"logprobs": True, "top_logprobs": top})}
        requests = native(**wishes) if kind == "native" else chat(**wishes, **route)
        lengths = [rng.randint(1, room - 1)]
        if kind == "native":
            n = requests[0].sampling.n
            serializer = NativeSerializer("chat-r", tokenizer, RequestContext(), logprobs=top is not None, n=n)
        else:
            serializer = CompletionSerializer(requests[0], model, fingerprint="fp_1")
    answer = asyncio.run(made(serializer, requests, lengths, room, tokenizer, rng))
    sums = sums_of(requests, room, lengths)
    tokens, nbytes = sums.counted(limits)
    assert len(answer) <= nbytes and listed(json.loads(answer)) <= tokens
    spelled_ids = [
        tokenizer.encode(text)
        for word in requests[0].sampling.bad_words
        for text in (word.lstrip(), f" {word.lstrip()}")
    ]
    assert sum(map(len, spelled_ids)) <= sums.ids["bad_words"]


def test_the_widest_token_is_the_widest(tokenizer: BPETokenizer) -> None:
    tokens = [tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)]
    texts = [len(json.dumps(token.decode("utf-8", "replace"), ensure_ascii=False).encode()) - 2 for token in tokens]
    lists = [len(json.dumps(list(token), separators=(",", ":"))) for token in tokens]
    text, spelled = widest(tokenizer)
    assert text >= max(texts)
    assert spelled >= max(a + b - 2 for a, b in zip(texts, lists, strict=True))
    assert text <= 6 * tokenizer.longest_token and spelled <= 10 * tokenizer.longest_token


def test_the_formulas_as_they_are_written() -> None:
    sums = Sums(prompts=(10, 20), room=100, n=3, max_tokens=50, listed=2, scored=True, stops=5, ids={"logit_bias": 4})
    limits = RequestLimits(tokens=1, nbytes=1, text=7, spelled=11)
    plain = replace(sums, listed=0, scored=False)
    assert sums.counted(limits)[0] == (10 + 3 * (50 + 10) * 4) + (20 + 3 * (50 + 20) * 4)
    assert plain.counted(limits)[0] == (10 + 3 * 50) + (20 + 3 * 50)
    assert replace(plain, max_tokens=None).counted(limits)[0] == (10 + 3 * 90) + (20 + 3 * 80)
    for legacy, entries in ((False, 2 * (11 + 112)), (True, 3 * (7 + 112))):
        shown = sum(3 * (512 + 50 * (7 + 120) + p * 24 + (50 + p) * entries) for p in (10, 20))
        assert replace(sums, legacy=legacy).counted(limits)[1] == 16384 + shown + 2 * (64 * 4 + 3 * 4 * 5)
