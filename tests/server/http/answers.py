"""One short answer and two beside each other, as deltas; both dialects are asked to write them."""

import asyncio
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from model.engine.messages import Token
from server.http.responses import Serializer, written
from server.http.routes.chat_completions import CompletionSerializer
from server.requests.answer import Delta
from server.requests.request import ChatRequest
from server.requests.sampling import SamplingRequest
from tests.server.doubles import card, chat_of, prepared
from tokenization.messages import Prepared
from tokenization.text.bpe import BPETokenizer

TOKENS = (
    Token(id=65, logprob=-0.5, top=((65, -0.5), (66, -1.0))),
    Token(id=151, logprob=-2.0),
    Token(id=9999, logprob=-3.0),
)
ACCEPTED = prepared("chat-1", 10, media=2)  # two pictures of two tokens
DELTAS = [
    Delta(text='a "quote"\n', tokens=TOKENS[:1]),
    Delta(text="", tokens=TOKENS[1:2]),
    Delta(text="\u2028你", tokens=TOKENS[2:], finish="stop"),
]
SEVERAL = [
    Delta(index=1, text="x", tokens=TOKENS[:1]),
    Delta(index=0, text="a", tokens=TOKENS[1:2]),
    Delta(index=1, text="", tokens=TOKENS[1:2], finish="stop"),
    Delta(index=0, text="b", tokens=TOKENS[2:], finish="length"),
]


def completion(tokenizer: BPETokenizer, *, n: int = 1, logprobs: bool = False, **asked: Any) -> CompletionSerializer:
    """The writer of one answer on the OpenAI route, whose names must be quoted."""
    sampling = SamplingRequest(n=n, logprobs=logprobs)
    request = ChatRequest(id='"1', chat=chat_of("text"), chat_param="messages", sampling=sampling, **asked)
    model = replace(card(tokenizer), name='a "model"', pads={"image": 9})
    return CompletionSerializer(request, model, fingerprint="fp_1")


def parse(event: bytes | dict[str, Any]) -> Any:
    """The JSON of one event, which has the form of one; a long one is written in slices."""
    if isinstance(event, dict):
        return json.loads(b"".join(asyncio.run(written(event))))
    name, _, line = event.rpartition(b"data: ")
    assert line.endswith(b"\n\n") and line.count(b"\n") == 2
    found = json.loads(line)
    assert name == (b"event: %b\n" % found["type"].encode() if "type" in found else b"")
    return found


def joined(deltas: Iterable[Delta]) -> Delta:
    """One answer whole."""
    found = list(deltas)
    tokens = tuple(token for delta in found for token in delta.tokens)
    text = "".join(delta.text for delta in found)
    return msgspec.structs.replace(found[-1], text=text, tokens=tokens, prompt=found[0].prompt)


def collected(deltas: list[Delta]) -> list[Delta]:
    """Each answer whole, once every delta has come."""
    indices = sorted({delta.index for delta in deltas})
    return [joined([delta for delta in deltas if delta.index == index]) for index in indices]


def answered(serializer: Serializer, prepared: Prepared, answers: Sequence[Delta]) -> Any:
    """The JSON of a plain answer, as it is written."""
    n_tokens = sum(len(answer.tokens) for answer in answers)
    return json.loads(b"".join(asyncio.run(written(serializer.whole(prepared, answers, n_tokens)))))


def parse_all(events: Iterable[Any]) -> list[Any]:
    """The JSON of each event of a stream, where one delta may be several events or none."""
    return [parse(event + b"\n\n") for event in b"".join(events).split(b"\n\n") if event]
