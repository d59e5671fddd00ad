"""Bodies become chats and wishes; the e2e table of errors covers what is refused over HTTP, this one what is taken."""

import json
from collections.abc import Callable
from typing import Any

import pydantic_core
import pytest

from server.http.bodies import ChatBody
from server.http.native import read_native
from server.http.openai import read_openai
from server.http.tokenize import read_tokenize
from server.requests.refusal import Refusal
from server.requests.sampling import Wishes
from tokenization.chat.errors import ChatError

MESSAGES = [{"role": "user", "content": "Hi"}]


def openai(**fields: Any) -> bytes:
    return json.dumps({"messages": MESSAGES, **fields}).encode()


def native(**fields: Any) -> bytes:
    return json.dumps({"inputs": [{"text": "Hi"}], **fields}).encode()


def invalid(read: Callable[[bytes], ChatBody], raw: bytes) -> str:
    """What is said about a body that the route cannot take at all."""
    with pytest.raises(Refusal) as caught:
        read(raw)
    assert (caught.value.kind, caught.value.code) == ("invalid_request", "invalid_json")
    return caught.value.message


def test_a_body_that_says_nothing_wishes_nothing() -> None:
    assert read_openai(openai()).wishes == read_native(native()).wishes == Wishes()
    assert not read_openai(openai()).stream and not read_openai(openai()).include_usage


def test_nulls_say_nothing() -> None:
    names = ("temperature", "top_p", "top_k", "seed", "stop", "max_tokens", "logprobs", "ignore_eos", "top_logprobs")
    nothing = dict.fromkeys(names)
    assert read_openai(openai(**nothing, model=None, stream=None, n=None)).wishes == Wishes()
    assert read_native(native(parameters=nothing, stream=None, model=None)).wishes == Wishes()
    assert read_native(native(parameters=None)).wishes == Wishes()


def test_every_wish_arrives_by_both_routes() -> None:
    wishes: dict[str, Any] = {
        "max_tokens": 5, "temperature": 1, "top_p": 0.5, "top_k": -1, "seed": -7, "stop": "x", "ignore_eos": True,
        "logprobs": True, "top_logprobs": 20, "min_tokens": 5, "min_p": 0.25, "presence_penalty": -2,
        "frequency_penalty": 2.0, "repetition_penalty": 1.5, "n": 3,
    }  # fmt: skip
    expected = Wishes(
        **{**wishes, "top_k": 0, "stop": ("x",), "temperature": 1.0}, stop_token_ids=(4, 5), include_stop=True,
        logit_bias=((7, -100.0), (8, 0.5)),
    )  # fmt: skip
    wishes |= {
        "stop_token_ids": [4, 5],
        "include_stop_str_in_output": True,
        "logit_bias": {"7": -100, "8": 0.5},
    }
    assert read_openai(openai(**wishes)).wishes == read_native(native(parameters=wishes)).wishes == expected


def test_the_newer_name_of_max_tokens_wins() -> None:
    assert read_openai(openai(max_tokens=3, max_completion_tokens=4)).wishes.max_tokens == 4
    assert read_openai(openai(max_completion_tokens=4)).wishes.max_tokens == 4
    assert read_openai(openai(max_tokens=3, max_completion_tokens=4, min_tokens=4)).wishes.min_tokens == 4
    with pytest.raises(Refusal) as caught:
        read_openai(openai(max_tokens=9, max_completion_tokens=4, min_tokens=5))
    assert caught.value.param == "min_tokens"


@pytest.mark.parametrize("stop", [["a"] * 16, [], "x" * 1024, ["\n", " "]])
def test_stops_that_are_taken(stop: Any) -> None:
    expected = (stop,) if isinstance(stop, str) else tuple(stop)
    assert read_openai(openai(stop=stop)).wishes.stop == expected


def test_edges_of_ranges_are_inside() -> None:
    wishes = {"temperature": 0, "top_p": 1, "top_k": 0, "seed": (1 << 63) - 1, "max_tokens": 1, "logprobs": True}
    read = read_openai(openai(**wishes, top_logprobs=0)).wishes
    assert (read.temperature, read.top_p, read.seed) == (0.0, 1.0, (1 << 63) - 1)
    assert read_native(native(parameters={"seed": -(1 << 63)})).wishes.seed == -(1 << 63)


def test_tokenize_reads_both_dialects() -> None:
    assert read_tokenize(openai(model="m")).model == "m"
    assert read_tokenize(openai()).chat.turns[0].role == "user"
    assert read_tokenize(b'[{"text": "Hi"}]').chat == read_native(native()).chat
    assert (read_tokenize(openai()).chat_param, read_tokenize(native()).chat_param) == ("messages", "inputs")


def test_the_first_complaint_does_not_repeat_the_value() -> None:
    with pytest.raises(Refusal) as caught:
        read_openai(openai(temperature="secret"))
    assert "secret" not in caught.value.message and caught.value.param == "temperature"


def test_huge_numbers_are_refused_as_such() -> None:
    for number in ("1" + "0" * 5000, "-" + "9" * 400):
        with pytest.raises(Refusal):
            read_openai(openai(seed=0).replace(b'"seed": 0', f'"seed": {number}'.encode()))


@pytest.mark.parametrize("raw", [b"null", b'"x"', b"3"])
def test_what_is_no_json_object_is_told_what_its_route_takes(raw: bytes) -> None:
    assert invalid(read_openai, raw) == "the body must be a JSON object"
    for read in (read_native, read_tokenize):
        assert invalid(read, raw) == "the body must be a JSON object or a list of inputs"


def test_a_bare_list_is_no_completion() -> None:
    assert invalid(read_openai, b"[]") == "the body must be a JSON object"


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


def test_a_choice_among_no_tools_can_only_be_none() -> None:
    for choice in (None, "none", "auto"):
        assert read_openai(openai(tool_choice=choice)).wishes == Wishes()
    for refused in ("required", "", 3, {"type": "function", "function": {"name": "f"}}):
        with pytest.raises(Refusal) as caught:
            read_openai(openai(tool_choice=refused))
        assert (caught.value.kind, caught.value.param) == ("invalid_request", "tool_choice")


@pytest.mark.parametrize(("name", "value"), [("stop", 3), ("response_format", {"type": "x"}), ("logit_bias", 3)])
def test_a_complaint_of_ours_is_told_in_our_words(name: str, value: Any) -> None:
    with pytest.raises(Refusal) as caught:
        read_openai(openai(**{name: value}))
    assert caught.value.message.startswith((f"{name}: must be ", f"{name}: only "))


def test_deep_nesting_is_an_error_and_no_crash() -> None:
    for read in (read_openai, read_native, read_tokenize):
        with pytest.raises((Refusal, ChatError)):
            read(b"[" * 100_000 + b"]" * 100_000)
