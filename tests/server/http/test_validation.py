"""What reading a body has in common on every route: it is parsed once, and the first complaint names its field."""

import re
from collections.abc import Callable
from typing import Any

import pydantic_core
import pytest

from server.http.reading import require_json
from server.http.routes.chat_completions import CompletionBody
from server.requests.refusal import Refusal
from server.requests.request import ChatRequest
from server.requests.sampling import SamplingRequest
from tests.server.http.request_bodies import native, openai, read_native, read_openai, read_tokenize, refusal
from tests.server.tables import each_of
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


@each_of("raw", [b"null", b'"x"', b"3"])
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


@each_of("dialect", [native, openai])
def test_a_model_is_a_string_in_either_dialect(dialect: Callable[..., bytes]) -> None:
    with pytest.raises(Refusal) as caught:
        read_tokenize(dialect(model=3))
    assert (caught.value.message, caught.value.param) == ("model: must be a string", "model")


@each_of("raw", [b"{", b'{"a": NaN}', b'{"a": -Infinity}'])
def test_what_is_no_json_is_told_alike_on_every_route(raw: bytes) -> None:
    messages = {invalid(read, raw) for read in (read_openai, read_native, read_tokenize)}
    assert len(messages) == 1 and messages.pop().count("JSON") == 1


@each_of("name", ["temperature", "foo"])
def test_no_number_stands_in_a_field_that_is_ignored_either(name: str) -> None:
    with pytest.raises(Refusal) as caught:
        read_openai(openai(**{name: float("nan")}))
    assert caught.value.code == "invalid_json"


@each_of(("name", "value"), [("stop", 3), ("response_format", "x"), ("logit_bias", 3)])
def test_a_complaint_of_ours_is_told_in_our_words(name: str, value: Any) -> None:
    with pytest.raises(Refusal) as caught:
        read_openai(openai(**{name: value}))
    assert caught.value.message.startswith(f"{name}: must be ")


# What a client may write into any field, of every type and beyond every bound.
ANYTHING: list[Any] = [
    True, 1, 0, -1, 1.5, 10**30, 10**400, -(10**400), 1e308, "x", "", "x" * 2000, [], ["x"], [1], [-1], [1.5], [10**30],
    [None], ["x"] * 200, [1] * 200, {}, {"a": 1}, {"1": 1000}, {"include_usage": 3},
]  # fmt: skip
PYDANTIC = re.compile(
    r"[Ii]nput should|[Ll]ist should|[Ff]ield required|valid |validation|permitted|not taken|instance"
)


@each_of("name", [*(CompletionBody.model_fields | SamplingRequest.model_fields), "zz"])
def test_no_words_of_pydantic_reach_a_client(name: str) -> None:
    for value in ANYTHING:
        for read, raw in (
            (read_openai, openai(**{name: value})),
            (read_native, native(parameters={name: value})),
            (read_native, native(parameters={"draw_boxes": value})),
            (read_native, native(parameters=value)),
        ):
            try:
                read(raw)
            except Refusal as error:
                assert not PYDANTIC.search(error.message) and error.message.startswith(f"{error.param}: "), (
                    error.message
                )
            except ChatError:
                pass  # ours from the first word


@each_of(
    ("fields", "message"),
    [
        ({"n": 1.5}, "n: must be a whole number"),
        ({"n": 0}, "n: must be 1 or more"),
        ({"top_p": 0}, "top_p: must be more than 0"),
        ({"top_p": 1.5}, "top_p: must be 1 or less"),
        ({"repetition_penalty": 0.05}, "repetition_penalty: must be 0.1 or more"),
        ({"temperature": "x"}, "temperature: must be a number"),
        ({"ignore_eos": 1}, "ignore_eos: must be true or false"),
        ({"model": 1}, "model: must be a string"),
        ({"messages": None}, "messages: must be a list"),
        ({"stream_options": 3}, "stream_options: must be an object"),
        ({"allowed_token_ids": []}, "allowed_token_ids: has 0 entries; it must have 1 or more"),
        ({"stop_token_ids": [1] * 129}, "stop_token_ids: has 129 entries; at most 128 are taken"),
        ({"stop_token_ids": [1, "x"]}, "stop_token_ids[1]: must be a whole number"),
    ],
)
def test_what_is_wrong_is_told_in_our_words(fields: dict[str, Any], message: str) -> None:
    assert refusal(read_openai, openai(**fields)).message == message


def test_what_is_missing_is_told_in_our_words() -> None:
    assert refusal(read_openai, b"{}").message == "messages: is missing"


@each_of(
    ("biases", "message"),
    [
        ({"a": 1, "-1": 1, "3": 1}, "a key must be a token id, 0 or more: not 'a', '-1'"),
        ({"x" * 100: 1}, f"a key must be a token id, 0 or more: not '{'x' * 60}...'"),
        ({f"k{i}": 1 for i in range(10)},
         "a key must be a token id, 0 or more: not " + ", ".join(f"'k{i}'" for i in range(8)) + " and 2 more"),
        ({"3": 101}, "a bias must lie between -100 and 100: not that of 3"),
    ],
)  # fmt: skip
def test_a_complaint_about_biases_names_the_keys(biases: dict[str, Any], message: str) -> None:
    assert refusal(read_openai, openai(logit_bias=biases)).message == f"logit_bias: {message}"


@each_of("kind", ["application/json", "APPLICATION/json", "application/json; charset=utf-8"])
def test_json_is_declared(kind: str) -> None:
    require_json(kind)


@each_of("kind", [None, "", "text/plain", "text/json", "application/x-www-form-urlencoded", "x" * 999])
def test_what_is_not_declared_as_json_is_refused(kind: str | None) -> None:
    with pytest.raises(Refusal) as caught:
        require_json(kind)
    assert (caught.value.kind, caught.value.code) == ("invalid_request", "unsupported_media_type")
    assert len(caught.value.message) < 200


def test_deep_nesting_is_an_error_and_no_crash() -> None:
    for read in (read_openai, read_native, read_tokenize):
        with pytest.raises((Refusal, ChatError)):
            read(b"[" * 100_000 + b"]" * 100_000)
