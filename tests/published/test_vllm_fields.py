"""Every request field of vLLM over a running server: honoured, or a 400 that names it, or without effect."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from server.http.routes.vllm_fields import FIELDS
from tests.e2e.running import RunningServer, data_url, picture, running, uncached
from tests.e2e.test_chat import events
from tests.parity.test_prefill import WITH_IDS
from tests.tiny.qwen2_vl import write_qwen2_vl
from tokenization.chat.tool_offer import FIELDS as TOOLS

CHAT, TOKENIZE = "/v1/chat/completions", "/tokenize"
PICTURE = {"type": "image_url", "image_url": {"url": data_url(picture(240, 160))}}
ASKED = [{"role": "user", "content": [PICTURE, {"type": "text", "text": "what is it?"}]}]
BEGUN = [*ASKED, {"role": "assistant", "content": "It is"}]
BASE: dict[str, Any] = {"messages": ASKED, "max_tokens": 24, "temperature": 0, "ignore_eos": True}
A, B = 32, 33  # a byte-level vocabulary's letters
DIGITS = list(range(15, 25))
HOT = {"temperature": 1.5, "seed": 3}
ANY: list[Any] = [True, 7, "x", ["x"], {"a": 1}]
REFUSED = [field for field in FIELDS if field.treatment == "refused"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its template counts pictures where `add_vision_id` asks for it, as the published one."""
    path = write_qwen2_vl(tmp_path_factory.mktemp("checkpoints") / "fields", tied=False)
    (path / "chat_template.json").write_text(json.dumps({"chat_template": WITH_IDS}))
    return path


@pytest.fixture(scope="module")
def fields(model: Path, shm_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    root = shm_root.with_name(f"{shm_root.name}-fields")
    with running(model, root, tmp_path_factory.mktemp("logs"), "--workers", "1") as server:
        yield server


@pytest.fixture(scope="module")
def special(model: Path) -> dict[str, int]:
    added = json.loads((model / "tokenizer.json").read_text())["added_tokens"]
    return {token["content"]: token["id"] for token in added}


def post(server: RunningServer, url: str = CHAT, **body: Any) -> httpx.Response:
    return server.http.post(url, json={**BASE, **body})


def answer(server: RunningServer, **body: Any) -> dict[str, Any]:
    """What a client sees of the answer, without its id, its time and what was cached."""
    found = post(server, **body)
    assert found.status_code == 200, found.text
    whole = found.json()
    return {"choices": whole["choices"], "usage": uncached(whole["usage"])}


def text(server: RunningServer, **body: Any) -> str:
    said: str = answer(server, **body)["choices"][0]["message"]["content"]
    return said


# ---- honoured. For each field: what stands beside it both times, and what it is set to.

CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "messages": ({}, {"messages": [{"role": "user", "content": "Hi"}]}),
    "max_completion_tokens": ({}, {"max_completion_tokens": 3}),
    "max_tokens": ({}, {"max_tokens": 3}),
    "min_tokens": ({"stop_token_ids": [A], "logit_bias": {str(A): 100}}, {"min_tokens": 5}),
    "temperature": ({"seed": 3}, {"temperature": 1.5}),
    "top_p": (HOT, {"top_p": 1e-6}),
    "top_k": (HOT, {"top_k": 1}),
    "min_p": (HOT, {"min_p": 1}),
    "seed": (HOT, {"seed": 4}),
    "n": ({}, {"n": 2}),
    "presence_penalty": ({}, {"presence_penalty": 2}),
    "frequency_penalty": ({}, {"frequency_penalty": 2}),
    "repetition_penalty": ({}, {"repetition_penalty": 10}),
    "logit_bias": ({}, {"logit_bias": {str(A): 100}}),
    "allowed_token_ids": ({}, {"allowed_token_ids": [A, B]}),
    "bad_words": ({"allowed_token_ids": [A, B], "logit_bias": {str(A): 50}}, {"bad_words": ["A"]}),
    "stop": ({"allowed_token_ids": [A]}, {"stop": "AAA"}),
    "stop_token_ids": ({"allowed_token_ids": [A]}, {"stop_token_ids": [A]}),
    "include_stop_str_in_output": ({"allowed_token_ids": [A], "stop": "A"}, {"include_stop_str_in_output": True}),
    "logprobs": ({}, {"logprobs": True}),
    "top_logprobs": ({"logprobs": True}, {"top_logprobs": 2}),
    "return_token_ids": ({}, {"return_token_ids": True}),
    "return_tokens_as_token_ids": ({"logprobs": True}, {"return_tokens_as_token_ids": True}),
    "add_generation_prompt": ({}, {"add_generation_prompt": False}),
    "continue_final_message": ({"messages": BEGUN}, {"continue_final_message": True}),
    "chat_template_kwargs": ({}, {"chat_template_kwargs": {"add_vision_id": True}}),
    "response_format": ({}, {"response_format": {"type": "json_object"}}),
    "structured_outputs": ({}, {"structured_outputs": {"regex": "[0-9]+"}}),
    "mm_processor_kwargs": ({}, {"mm_processor_kwargs": {"max_pixels": 3136 * 4}}),
}
BY_HAND = {"model", "stream", "stream_options", "skip_special_tokens", "ignore_eos"}  # each has a test below
ELSEWHERE = {"cache_salt", "echo", "include_reasoning", *TOOLS}  # tests/e2e, tests/server/http/routes


def test_every_honoured_field_is_looked_at() -> None:
    assert {field.name for field in FIELDS if field.treatment == "honoured"} == {*CHANGES, *BY_HAND, *ELSEWHERE}


@pytest.mark.parametrize("name", CHANGES)
def test_an_honoured_field_changes_the_answer(fields: RunningServer, name: str) -> None:
    beside, change = CHANGES[name]
    before, after = answer(fields, **beside), answer(fields, **{**beside, **change})
    assert before != after and before == answer(fields, **beside)


def test_a_model_and_a_stream_are_honoured(fields: RunningServer) -> None:
    assert post(fields, model="other").status_code == 404
    assert post(fields, model="fields").status_code == 200
    plain = events(post(fields, stream=True))
    assert events(post(fields, stream=True, stream_options={"include_usage": True}))[-1]["usage"]
    assert all("usage" not in chunk for chunk in plain)


def test_special_tokens_are_shown_and_seen_by_stop_strings(fields: RunningServer, special: dict[str, int]) -> None:
    start = special["<|im_start|>"]
    forced: dict[str, Any] = {"allowed_token_ids": [start], "max_tokens": 3}
    assert text(fields, **forced) == "" == text(fields, **forced, skip_special_tokens=True)
    assert text(fields, **forced, skip_special_tokens=False) == "<|im_start|>" * 3
    chunks = events(post(fields, **forced, skip_special_tokens=False, stream=True))
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == "<|im_start|>" * 3
    assert text(fields, **forced, skip_special_tokens=False, stop="start|><") == "<|im_"
    native = {"inputs": [{"text": "Hi"}], "parameters": {**forced, "skip_special_tokens": False}}
    assert fields.http.post("/chat", json=native).json()["text"] == "<|im_start|>" * 3


def test_an_end_is_hidden_and_must_be_allowed(fields: RunningServer, special: dict[str, int]) -> None:
    end = special["<|im_end|>"]
    for asked, said, finish in (
        ({"allowed_token_ids": [A]}, "AAAA", "length"),  # no end is listed, so the answer runs on
        ({"allowed_token_ids": [end]}, "", "stop"),
        ({"allowed_token_ids": [end], "skip_special_tokens": False}, "", "stop"),
        ({"allowed_token_ids": [end], "skip_special_tokens": False, "include_stop_str_in_output": True},
         "<|im_end|>", "stop"),
        ({"allowed_token_ids": [end], "ignore_eos": True}, "", "length"),
    ):  # fmt: skip
        choice = answer(fields, **{"max_tokens": 4, "ignore_eos": False, **asked})["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == (said, finish)


# ---- prefill


def test_a_continued_answer_goes_on_as_the_whole_one(fields: RunningServer) -> None:
    whole = text(fields, allowed_token_ids=DIGITS)
    assert len(whole) == 24 and whole.isdigit()
    for at in (1, 7, 23):
        begun = [*ASKED, {"role": "assistant", "content": whole[:at]}]
        rest = text(fields, messages=begun, continue_final_message=True, allowed_token_ids=DIGITS, max_tokens=24 - at)
        assert rest == whole[at:]
        explicit: dict[str, Any] = {"continue_final_message": True, "add_generation_prompt": False, "stream": True}
        chunks = events(post(fields, messages=begun, allowed_token_ids=DIGITS, max_tokens=24 - at, **explicit))
        assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == rest


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"add_generation_prompt": False},
        {"messages": BEGUN, "continue_final_message": True},
        {"chat_template_kwargs": {"add_vision_id": True}},
        {"mm_processor_kwargs": {"max_pixels": 3136 * 4}},
        {"mm_processor_kwargs": {"size": {"shortest_edge": 500_000}}},
    ],
    ids=str,
)
def test_counted_as_answered(fields: RunningServer, asked: dict[str, Any]) -> None:
    counted = post(fields, TOKENIZE, **asked).json()
    assert counted["count"] == answer(fields, **asked)["usage"]["prompt_tokens"]
    plain = post(fields, TOKENIZE).json()
    assert (counted["ids"] == plain["ids"]) == (not asked)


def test_an_option_of_all_media_is_that_of_each(fields: RunningServer) -> None:
    def own(**options: Any) -> list[dict[str, Any]]:
        part = {"type": "image_url", "image_url": {**PICTURE["image_url"], **options}}  # type: ignore[dict-item]
        return [{"role": "user", "content": [part, {"type": "text", "text": "what is it?"}]}]

    few, many = {"max_pixels": 3136 * 4}, {"min_pixels": 500_000}
    for options in (few, many):
        assert answer(fields, mm_processor_kwargs=options) == answer(fields, messages=own(**options))
    assert answer(fields, messages=own(**many), mm_processor_kwargs=few) == answer(fields, messages=own(**many))


# ---- refused


def refused(found: httpx.Response) -> dict[str, Any]:
    assert found.status_code == 400, found.text
    error: dict[str, Any] = found.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["type"] == "invalid_request_error"
    return error


def test_a_refused_field_is_a_400_that_names_it(fields: RunningServer) -> None:
    """One value of each, by turns on the two routes; the unit test of the field table has all values of all."""
    for i, field in enumerate(REFUSED):
        value = next(value for value in ANY if value not in field.neutral)
        error = refused(post(fields, (CHAT, TOKENIZE)[i % 2], **{field.name: value}))
        assert (error["param"], error["code"]) == (field.name, "unsupported_parameter")
        assert error["message"].startswith(f"{field.name}: ") and len(error["message"]) > len(field.name) + 12


def test_what_changes_nothing_passes(fields: RunningServer) -> None:
    plain = answer(fields)
    nulls = {field.name: None for field in FIELDS if field.name != "messages" and field.name not in BASE}
    assert answer(fields, **nulls) == plain
    for i in range(2):
        neutral = {field.name: field.neutral[i] for field in REFUSED if len(field.neutral) > i}
        assert answer(fields, **neutral) == plain
    for value in ANY:
        ignored = {field.name: value for field in FIELDS if field.treatment == "ignored"}
        assert answer(fields, **ignored, unheard_of=value) == plain


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"messages": BEGUN, "continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"continue_final_message": "yes"}, "continue_final_message"),
        ({"add_generation_prompt": 1}, "add_generation_prompt"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"chat_template_kwargs": {"eos_token": "x"}}, "chat_template_kwargs.eos_token"),
        ({"chat_template_kwargs": {"x": "<|im_end|>"}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"x": 10**30}}, "chat_template_kwargs.x"),
        ({"chat_template_kwargs": [1]}, "chat_template_kwargs"),
        ({"mm_processor_kwargs": {"num_crops": 4}}, "mm_processor_kwargs.num_crops"),
        ({"mm_processor_kwargs": {"max_pixels": -1}}, "mm_processor_kwargs.max_pixels"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"allowed_token_ids": [10**6]}, "allowed_token_ids"),
        ({"bad_words": [""]}, "bad_words"),
        ({"bad_words": "x"}, "bad_words"),
        ({"skip_special_tokens": "no"}, "skip_special_tokens"),
    ],
    ids=str,
)
def test_an_honoured_field_is_refused_when_it_is_wrong(
    fields: RunningServer, asked: dict[str, Any], param: str
) -> None:
    assert refused(post(fields, **asked))["param"] == param


def test_rules_that_leave_no_token_are_the_clients_fault(fields: RunningServer, special: dict[str, int]) -> None:
    for rules in ({"allowed_token_ids": [special["<|image_pad|>"]]}, {"allowed_token_ids": [A], "bad_words": ["A"]}):
        assert refused(post(fields, **rules))["param"] == "allowed_token_ids"
        native = fields.http.post("/chat", json={"inputs": [{"text": "Hi"}], "parameters": rules})
        assert refused(native)["param"] == "parameters.allowed_token_ids"
    late = events_with_error(post(fields, allowed_token_ids=[A], bad_words=["AA"], stream=True))
    assert late["param"] == "allowed_token_ids"
    assert answer(fields) == answer(fields)
    fields.assert_nothing_held()


def events_with_error(found: httpx.Response) -> dict[str, Any]:
    lines = [line for line in found.text.split("\n") if line.startswith("data: ")]
    error: dict[str, Any] = json.loads(lines[-1].removeprefix("data: "))["error"]
    return error


def test_a_bad_word_never_stands_in_the_answer(fields: RunningServer) -> None:
    letters = {"allowed_token_ids": [A, B, 220], "temperature": 1.5, "max_tokens": 200}
    for seed in range(3):
        free = text(fields, **letters, seed=seed)
        tamed = text(fields, **letters, seed=seed, bad_words=["AB", "BBB"])
        assert "AB" in free and "BBB" in free
        assert "AB" not in tamed and "BBB" not in tamed and "A" in tamed and "BB" in tamed


def test_both_routes_answer_alike(fields: RunningServer) -> None:
    for rules in (CHANGES["bad_words"][1], CHANGES["allowed_token_ids"][1], {"skip_special_tokens": False}):
        asked = {"max_tokens": 12, "temperature": 0, "ignore_eos": True, **rules}
        native = fields.http.post("/chat", json={"inputs": [{"text": "Hi"}], "parameters": asked}).json()
        messages = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
        assert native["text"] == text(fields, messages=messages, **asked)


def test_the_sdk_passes_them_in_extra_body(fields: RunningServer) -> None:
    messages: Any = [{"role": "user", "content": "Count."}, {"role": "assistant", "content": "12"}]
    more = {"continue_final_message": True, "add_generation_prompt": False, "allowed_token_ids": DIGITS, "top_k": 1,
            "bad_words": ["7"], "skip_special_tokens": False, "chat_template_kwargs": {"add_vision_id": False},
            "mm_processor_kwargs": {"fps": 1}}  # fmt: skip
    with openai.OpenAI(base_url=f"{fields.url}/v1", api_key="none", max_retries=0) as client:
        whole = client.chat.completions.create(model="fields", messages=messages, max_tokens=9, extra_body=more)
        said = whole.choices[0].message.content
        assert said is not None and len(said) == 9 and said.isdigit() and "7" not in said
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model="fields", messages=messages, extra_body={"guided_choice": ["a", "b"]})
    assert caught.value.param == "guided_choice" and "structured_outputs" in caught.value.message
