"""The steps of which scenes are made: a request, its worker, its engine, its end."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from httpx import Response

from model.engine.messages import Generate, SamplingParams
from server.children.workers import WorkerJob
from server.requests.refusal import Refusal
from server.requests.request import ChatRequest
from server.requests.sampling import SamplingRequest
from tests.server.doubles import EmitDouble, Scene, chat_of, prepared, until
from tokenization.chat.parts import Chat
from tokenization.messages import Leases, Measured, Prepare
from tokenization.text.bpe import BPETokenizer

Play = Callable[..., None]  # play(scenario, **what the scene is made with)
A, B, C = 65, 66, 67  # ids of a byte-level vocabulary's letters


def request(*kinds: str, name: str = "chat-1", **wishes: Any) -> ChatRequest:
    chat, sampling = chat_of(*(kinds or ("text",))), SamplingRequest(**wishes)
    return ChatRequest(id=name, chat=chat, chat_param="inputs", sampling=sampling, stream=True)


def start(scene: Scene, asked: ChatRequest) -> "tuple[asyncio.Task[None], EmitDouble]":
    sink = EmitDouble()
    return asyncio.create_task(scene.service.run([asked], sink)), sink


async def begun(
    scene: Scene, name: str, chat: Chat, client: str = "", *, count_only: bool = False, short: bool = True
) -> WorkerJob:
    """A chat that a worker has begun."""
    prepare = Prepare(request_id=name, chat=chat, count_only=count_only)
    return await scene.workers.begin(prepare, client, short=short)


def told_to_prepare(said: Any, request_id: str) -> bool:
    return isinstance(said, Prepare) and said.request_id == request_id


async def leased(scene: Scene, asked: ChatRequest, nbytes: tuple[int, ...] = (100,)) -> tuple[str, ...]:
    """Play the worker up to Leases; the names."""
    await until(lambda: scene.to_worker()[-1:] and told_to_prepare(scene.to_worker()[-1], asked.id))
    params = tuple(media.param for media in asked.chat.media)
    measured = Measured(request_id=asked.id, nbytes=nbytes, params=params, n_tokens=(4,) * len(nbytes))
    scene.workers.slots[0].on_message(measured)
    await until(lambda: isinstance(scene.to_worker()[-1], Leases))
    names: tuple[str, ...] = scene.to_worker()[-1].names
    return names


async def answered_over_http(scene: Scene, asked: Coroutine[Any, Any, Response]) -> Response:
    """The answer to a chat without media that a client asks, with worker and engine played."""
    running = asyncio.create_task(asked)
    await until(lambda: scene.to_worker()[-1:] and isinstance(scene.to_worker()[-1], Prepare))
    name = scene.to_worker()[-1].request_id
    await generating(scene, name)
    scene.say(name, A, B, finish="stop")
    return await running


async def generating(scene: Scene, name: str = "chat-1", n: int = 5, media: int = 0) -> Generate:
    """Play the worker's last answer and wait for what the engine is told."""
    await until(lambda: scene.workers.slots[0].job is not None)
    scene.workers.slots[0].on_message(prepared(name, n, media))
    await until(lambda: any(isinstance(said, Generate) and said.request_id == name for said in scene.to_engine()))
    told = scene.to_engine()[-1]
    assert isinstance(told, Generate)
    return told


def text_of(tokenizer: BPETokenizer, *ids: int) -> str:
    return b"".join(tokenizer.token_bytes(i) for i in ids).decode("utf-8", "replace")


async def fails(task: "asyncio.Task[None]", kind: str, code: str | None = None, param: str | None = None) -> None:
    with pytest.raises(Refusal) as caught:
        await task
    assert caught.value.kind == kind
    assert (caught.value.code, caught.value.param) == (code, param)


def generate(name: str, n: int = 1) -> Generate:
    """A request that needs no worker any more."""
    return Generate(prepared=prepared(name), sampling=SamplingParams(max_tokens=9, seed=0, n=n))
