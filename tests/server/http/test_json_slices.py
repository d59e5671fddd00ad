"""A long answer is written in slices: the same JSON, and the loop has its turns in between."""

import asyncio
import gc
import json
from typing import Any

from model.engine.messages import Token
from server.http.responses import SLICE, LazyList, encoded, model_response, written
from server.http.routes.chat_completions import CompletionSerializer
from server.requests.answer import Delta, Emit
from server.requests.request import ChatRequest
from server.requests.sampling import SamplingRequest
from tests.hostile.loop_block import own_loop
from tests.server.doubles import card, chat_of, prepared
from tests.server.tables import each_of
from tokenization.text.bpe import BPETokenizer

N, TOKENS, TOP = 8, 1000, 20


@each_of(
    ("value", "plain"),
    [
        ({}, {}),
        (7, 7),
        ({"a": {"b": {}}, "é\n": [1, {"c": 2}]}, {"a": {"b": {}}, "é\n": [1, {"c": 2}]}),
        ({"a": LazyList(lambda: [])}, {"a": []}),
        (LazyList(lambda: [{"i": LazyList(lambda: range(3))}, None]), [{"i": [0, 1, 2]}, None]),
    ],
)
def test_what_is_written_is_the_json_of_the_value(value: Any, plain: Any) -> None:
    slices = asyncio.run(written(value))
    assert json.loads(b"".join(slices)) == json.loads(encoded(value)) == plain and len(slices) == 1


def test_others_have_their_turn_between_two_slices() -> None:
    async def run() -> tuple[int, int]:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        slices = await written({"rows": LazyList(lambda: ({"n": "x" * 100} for _ in range(4000)))})
        task.cancel()
        assert max(map(len, slices)) < SLICE + 200
        return turns, len(slices)

    turns, n = asyncio.run(run())
    assert n > 10 and turns >= n - 1


class Client:
    def __init__(self) -> None:
        self.sent: list[Any] = []

    async def receive(self) -> Any:
        await asyncio.Event().wait()

    async def send(self, message: Any) -> None:
        self.sent.append(message)


def test_a_large_answer_leaves_the_loop_its_turns(tokenizer: BPETokenizer) -> None:
    """8,000 tokens with 20 alternatives each, 7 MiB: at once they are half a second."""
    top = tuple((60 + i, -float(i)) for i in range(TOP))
    sampling = SamplingRequest(n=N, logprobs=True, top_logprobs=TOP)
    request = ChatRequest(id="1", chat=chat_of("text"), chat_param="messages", sampling=sampling)
    accepted = prepared("1", 3)

    async def run(emit: Emit) -> None:
        tokens = tuple(Token(id=65 + at % 20, logprob=-1.0, top=top) for at in range(TOKENS))
        for index in range(N):
            await emit(accepted, Delta(text="x" * TOKENS, tokens=tokens, index=index, finish="length"))
            await asyncio.sleep(0)

    async def ask() -> Client:
        client = Client()
        serializer = CompletionSerializer(request, card(tokenizer), fingerprint="fp")
        async with own_loop() as longest:
            answer = model_response(run, serializer, stream=False)
            await answer({"type": "http"}, client.receive, client.send)
        longest.assert_within(0.05)
        return client

    gc.collect()
    gc.freeze()  # as the server does: the collections of what other tests left are not this one's
    client = asyncio.run(ask())
    start, *bodies = client.sent
    size = sum(len(message["body"]) for message in bodies)
    assert size > 6 << 20 and (b"content-length", str(size).encode()) in start["headers"]
    assert [message["more_body"] for message in bodies] == [True] * (len(bodies) - 1) + [False]
    whole = json.loads(b"".join(message["body"] for message in bodies))
    assert [len(choice["logprobs"]["content"]) for choice in whole["choices"]] == [TOKENS] * N
    assert whole["usage"]["completion_tokens"] == N * TOKENS
    assert whole["choices"][7]["message"]["content"] == "x" * TOKENS
