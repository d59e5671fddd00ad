"""An error about a parameter names the place where the client wrote it, which differs between the dialects."""

import dataclasses

import pytest

from server.requests.request import ChatRequest
from server.requests.sampling import SamplingRequest
from tests.server.doubles import chat_of
from tests.server.http.request_bodies import read_native, read_openai
from tests.server.tables import each_of


def asked(chat_param: str) -> ChatRequest:
    return ChatRequest(id="chat-1", chat=chat_of("text"), chat_param=chat_param, sampling=SamplingRequest())


@each_of(("chat_param", "path"), [("inputs", "parameters.top_p"), ("messages", "top_p")])
def test_a_parameter_is_named_as_its_dialect_writes_it(chat_param: str, path: str) -> None:
    assert asked(chat_param).parameter("top_p") == path


@each_of("body", [b'{"inputs": [{"text": "x"}]}', b'[{"text": "x"}]'])
def test_native_bodies_have_their_parameters_beside_the_inputs(body: bytes) -> None:
    assert read_native(body).parameter("n") == "parameters.n"


def test_openai_bodies_have_their_parameters_at_the_top() -> None:
    request = read_openai(b'{"messages": [{"role": "user", "content": "x"}]}')
    assert request.parameter("n") == "n"


def test_boxes_are_for_those_who_ask() -> None:
    assert asked("inputs").grounding == "none"


def test_a_request_stays_as_it_was_accepted() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        asked("inputs").id = "chat-2"  # type: ignore[misc]
