"""What reading a body has in common on every route: it is parsed once, and the first complaint names its field."""

from collections.abc import Callable
from typing import Any

import pydantic_core
import pytest

from server.requests.refusal import Refusal
from server.requests.request import ChatRequest
from tests.server.http.request_bodies import native, openai, read_native, read_openai, read_tokenize, refusal
from tokenization.chat.errors import ChatError


def invalid(read: Callable[[bytes], ChatRequest], raw: bytes) -> str:
    """What is said about a body that the route cannot take at all."""
    error = refusal(read, raw)
    assert (error.kind, error.code) == ("invalid_request", "invalid_json")
    return error.message


def test_the_first_complaint_does_not_repeat_the_value() -> None:
    with pytest.raises(Refusal) as caught:
        read_openai(openai(temperature="secret"))
    assert "secret" not in caught.value.message and caught.value.param == "temperature"


@pytest.mark.parametrize("raw", [b"null", b'"x"', b"3"])
def test_what_is_no_json_object_is_told_what_its_route_takes(raw: bytes) -> None:
    assert invalid(read_openai, raw) == "the body must be a JSON object"
    for read in (read_native, read_tokenize):
        assert invalid(read, raw) == "the body must be a JSON object or a list of inputs"


def test_a_body_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    real, seen = pydantic_core.from_json, list[bytes]()

    def from_json(raw: bytes, **options: Any) -> Any:
        seen.append(raw)
        return real(raw, **options)

    monkeypatch.setattr(pydantic_core, "from_json", from_json)
    for read, raw in ((read_tokenize, native()), (read_tokenize, openai()), (read_native, native())):
        read(raw)
        assert seen.pop() == raw and not seen


@pytest.mark.parametrize("dialect", [native, openai])
def test_a_model_is_a_string_in_either_dialect(dialect: Callable[..., bytes]) -> None:
    with pytest.raises(Refusal) as caught:
        read_tokenize(dialect(model=3))
    assert (caught.value.message, caught.value.param) == ("must be a string", "model")


@pytest.mark.parametrize("raw", [b"{", b'{"a": NaN}', b'{"a": -Infinity}'])
def test_what_is_no_json_is_told_alike_on_every_route(raw: bytes) -> None:
    messages = {invalid(read, raw) for read in (read_openai, read_native, read_tokenize)}
    assert len(messages) == 1 and messages.pop().count("JSON") == 1


@pytest.mark.parametrize("name", ["temperature", "foo"])
def test_no_number_stands_in_a_field_that_is_ignored_either(name: str) -> None:
    with pytest.raises(Refusal) as caught:
        read_openai(openai(**{name: float("nan")}))
    assert caught.value.code == "invalid_json"


@pytest.mark.parametrize(("name", "value"), [("stop", 3), ("response_format", {"type": "x"}), ("logit_bias", 3)])
def test_a_complaint_of_ours_is_told_in_our_words(name: str, value: Any) -> None:
    with pytest.raises(Refusal) as caught:
        read_openai(openai(**{name: value}))
    assert caught.value.message.startswith((f"{name}: must be ", f"{name}: only "))


def test_deep_nesting_is_an_error_and_no_crash() -> None:
    for read in (read_openai, read_native, read_tokenize):
        with pytest.raises((Refusal, ChatError)):
            read(b"[" * 100_000 + b"]" * 100_000)
