"""Bodies of both dialects that ask for an answer to "Hi", and what is said about bodies that are refused."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from server.http.routes import chat_completions as openai_reader
from server.http.routes import native as native_reader
from server.http.routes import tokenize as tokenize_reader
from server.requests.refusal import Refusal
from server.requests.request import ChatRequest

MESSAGES = [{"role": "user", "content": "Hi"}]


def openai(**fields: Any) -> bytes:
    """A body of /v1/chat/completions."""
    return json.dumps({"messages": MESSAGES, **fields}).encode()


def native(**fields: Any) -> bytes:
    """A body of /chat."""
    return json.dumps({"inputs": [{"text": "Hi"}], **fields}).encode()


def read_native(raw: bytes) -> ChatRequest:
    """What /chat makes of it."""
    return native_reader.read_native(raw, "r1")


def read_openai(raw: bytes) -> ChatRequest:
    """What /v1/chat/completions makes of it."""
    return openai_reader.read_openai(raw, "r1")


def read_tokenize(raw: bytes) -> ChatRequest:
    """What /tokenize makes of it."""
    return tokenize_reader.read_tokenize(raw, "r1").request


def refusal(read: Callable[[bytes], ChatRequest], raw: bytes) -> Refusal:
    """What ends the request with this body."""
    with pytest.raises(Refusal) as caught:
        read(raw)
    return caught.value
