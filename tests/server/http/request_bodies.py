"""Bodies of both dialects that ask for an answer to "Hi", and what is said about bodies that are refused."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from server.http.bodies import ChatBody
from server.requests.refusal import Refusal

MESSAGES = [{"role": "user", "content": "Hi"}]


def openai(**fields: Any) -> bytes:
    """A body of /v1/chat/completions."""
    return json.dumps({"messages": MESSAGES, **fields}).encode()


def native(**fields: Any) -> bytes:
    """A body of /chat."""
    return json.dumps({"inputs": [{"text": "Hi"}], **fields}).encode()


def refusal(read: Callable[[bytes], ChatBody], raw: bytes) -> Refusal:
    """What ends the request with this body."""
    with pytest.raises(Refusal) as caught:
        read(raw)
    return caught.value
