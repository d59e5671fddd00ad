"""Every request field of vLLM over a running server, and what its usage says of media that were made smaller.

A field is honoured, or a 400 that names it, or without effect.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from configs.checkpoint import Checkpoint
from model.registry import family_of
from server.http.routes.vllm_fields import FIELDS
from tests.e2e.running import RunningServer, data_url, picture, running
from tests.e2e.test_chat import events
from tests.parity.test_prefill import WITH_IDS
from tests.published.vllm_fields import (
    ANY,
    ASKED,
    BASE,
    BY_HAND,
    CHANGES,
    CHAT,
    COUNTED,
    DIGITS,
    ELSEWHERE,
    PICTURE,
    REFUSED,
    TOKENIZE,
    WRONG,
    A,
    B,
    answer,
    events_with_error,
    post,
    refused,
    text,
)
from tests.samples.videos import make_clip
from tests.tables import entries
from tests.tiny.qwen2_vl import write_qwen2_vl
from tests.tokenization.worker_harness import url
from tokenization.chat.options import MediaOptions

pytestmark = pytest.mark.network

OWN = 12_845_056  # pixels: of every published checkpoint
LARGE = data_url(picture(1600, 1200))
SMALL = data_url(picture(300, 200))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its template counts pictures where `add_vision_id` asks for it, and its bound of pixels is the published one."""
    path = write_qwen2_vl(tmp_path_factory.mktemp("checkpoints") / "fields", tied=False, max_pixels=OWN)
    (path / "chat_template.json").write_text(json.dumps({"chat_template": WITH_IDS}))
    return path


@pytest.fixture(scope="module")
def fields(model: Path, shm_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Its cache holds 2048 tokens of a model that takes 32,768, and its bound of pixels is below the checkpoint's."""
    root, bounds = shm_root.with_name(f"{shm_root.name}-fields"), ("--max-pixels", "200704", "--kv-cache-mib", "1")
    with running(model, root, tmp_path_factory.mktemp("logs"), "--workers", "1", *bounds) as server:
        yield server


@pytest.fixture(scope="module")
def special(model: Path) -> dict[str, int]:
    added = json.loads((model / "tokenizer.json").read_text())["added_tokens"]
    return {token["content"]: token["id"] for token in added}


# ---- honoured


def test_every_honoured_field_is_looked_at() -> None:
    assert {field.name for field in FIELDS if field.treatment == "honoured"} == {*CHANGES, *BY_HAND, *ELSEWHERE}


@pytest.mark.process
def test_an_honoured_field_changes_the_answer(fields: RunningServer) -> None:
    """And nothing but the field does: without it the answer is the same again, after all of them."""

    def plain() -> dict[str, Any]:
        found = {json.dumps(beside): beside for beside, _ in CHANGES.values()}
        return {key: answer(fields, **beside) for key, beside in found.items()}

    before = plain()
    with entries() as entry:
        for name, (beside, change) in CHANGES.items():
            with entry(name):
                assert answer(fields, **{**beside, **change}) != before[json.dumps(beside)]
    assert plain() == before


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
    assert len(whole) == 12 and whole.isdigit()
    for at in (1, 7, 11):
        begun = [*ASKED, {"role": "assistant", "content": whole[:at]}]
        rest = text(fields, messages=begun, continue_final_message=True, allowed_token_ids=DIGITS, max_tokens=12 - at)
        assert rest == whole[at:]
        explicit: dict[str, Any] = {"continue_final_message": True, "add_generation_prompt": False, "stream": True}
        chunks = events(post(fields, messages=begun, allowed_token_ids=DIGITS, max_tokens=12 - at, **explicit))
        assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == rest


def test_counted_as_answered(fields: RunningServer) -> None:
    plain = post(fields, TOKENIZE).json()
    with entries() as entry:
        for asked in COUNTED:
            with entry(asked):
                counted = post(fields, TOKENIZE, **asked).json()
                assert counted["count"] == answer(fields, **asked, max_tokens=1)["usage"]["prompt_tokens"]
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


def test_an_honoured_field_is_refused_when_it_is_wrong(fields: RunningServer) -> None:
    with entries() as entry:
        for asked, param in WRONG:
            with entry(asked):
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


def test_a_bad_word_never_stands_in_the_answer(fields: RunningServer) -> None:
    letters = {"allowed_token_ids": [A, B, 220], "temperature": 1.5, "max_tokens": 100}
    for seed in range(2):
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


# ---- media that a bound of the server makes smaller


def expected(model: Path, width: int, height: int) -> tuple[int, int]:
    """(width, height) by the checkpoint alone."""
    checkpoint = Checkpoint(model)
    host: Any = family_of(checkpoint).processor(checkpoint, OWN)
    size: tuple[int, int] = host.handlers["image"]._resized(height, width, MediaOptions(), OWN)[::-1]
    return size


def test_usage_of_both_routes_says_what_was_made_smaller(fields: RunningServer, model: Path) -> None:
    parts = [{"image": SMALL}, {"image": LARGE}, {"text": "x"}]
    answer = fields.http.post("/chat", json={"inputs": parts, "parameters": {"max_tokens": 1}}).json()
    (found,) = answer["usage"]["reduced_media"]
    assert found["width"] * found["height"] <= 200_704 < found["wanted_width"] * found["wanted_height"]
    assert (found["wanted_width"], found["wanted_height"]) == expected(model, 1600, 1200)
    assert {key: found[key] for key in ("index", "kind", "limit", "param")} == {
        "index": 1, "kind": "image", "limit": "max_pixels", "param": "inputs[1].image",
    }  # fmt: skip
    content = [{"type": "image_url", "image_url": {"url": LARGE}}, {"type": "text", "text": "x"}]
    messages: Any = [{"role": "user", "content": content}]
    with openai.OpenAI(base_url=f"{fields.url}/v1", api_key="x") as client:
        whole = client.chat.completions.create(model="fields", messages=messages, max_tokens=1)
        chunks = list(
            client.chat.completions.create(
                model="fields", messages=messages, max_tokens=1, stream=True,
                stream_options={"include_usage": True},
            )
        )  # fmt: skip
    for usage in (whole.usage, chunks[-1].usage):
        assert usage is not None and usage.model_extra is not None
        (said,) = usage.model_extra["reduced_media"]
        assert said == {**found, "index": 0, "param": "messages[0].content[0]"}


def test_nothing_is_said_where_nothing_was_made_smaller(fields: RunningServer) -> None:
    asked_for = {"image": LARGE, "max_pixels": 50_176}  # the client's own wish
    answer = fields.http.post("/chat", json={"inputs": [{"image": SMALL}, asked_for], "parameters": {"max_tokens": 1}})
    assert "reduced_media" not in answer.json()["usage"]


def test_a_video_that_fits_the_model_and_not_the_cache_is_made_smaller(fields: RunningServer) -> None:
    """1 MiB of cache is 2048 tokens; at its own size the video has more."""
    assert fields.http.get("/v1/models").json()["data"][0]["max_model_len"] == 2048
    film = {"video": url(make_clip(60, size=(320, 240))), "fps": 20, "min_pixels": 100_352}
    answer = fields.http.post("/chat", json={"inputs": [film], "parameters": {"max_tokens": 1}})
    assert answer.status_code == 200, answer.text
    usage = answer.json()["usage"]
    (found,) = usage["reduced_media"]
    assert (found["kind"], found["limit"]) == ("video", "max_model_len") and usage["prompt_tokens"] < 2048
    counted = fields.http.post("/tokenize", json=[film]).json()
    assert counted["count"] == usage["prompt_tokens"]
    assert counted["media"][0]["reduced"] == {k: v for k, v in found.items() if k not in ("index", "param", "kind")}
    whole = fields.http.post("/chat", json=[{**film, "total_pixels": 90_316_800}])
    assert whole.status_code == 400 and whole.json()["error"]["code"] == "context_length_exceeded"
    assert json.dumps(whole.json()).count("2048")
