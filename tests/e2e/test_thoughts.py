"""Thoughts over a running server: a checkpoint made to think given thoughts, on every route, whole and streamed."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from configs.checkpoint import Checkpoint
from tests.e2e.running import running
from tests.e2e.test_chat import events
from tests.e2e.thinker import ASKED, BARE, CALLING, CITY, ENDLESS, PLAIN, THOUGHTS, TOOL, WORDS, Thinker, write_thinker
from tokenization.text.bpe import BPETokenizer

pytestmark = pytest.mark.process

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def thinker(shm_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Thinker]:
    model = tmp_path_factory.mktemp("checkpoints") / "thinks"
    first, mark = write_thinker(model)
    special = BPETokenizer.from_checkpoint(Checkpoint(model)).special
    assert not {"<think>", "</think>"} & special.keys(), "the published files have them so"
    root = shm_root.with_name(f"{shm_root.name}-thinks")
    with running(model, root, tmp_path_factory.mktemp("logs"), "--workers", "1") as server:
        one = Thinker(server, first, mark)
        with one.client:
            yield one


def of(choice: Any) -> tuple[str | None, str | None]:
    """What a choice of openai-python thinks and says."""
    return choice.message.model_extra.get("reasoning"), choice.message.content


# ---- whole


def test_a_thought_stands_beside_the_words(thinker: Thinker) -> None:
    for i in (PLAIN, CALLING):
        found = thinker.chat(i, n=2, logprobs=True, extra_body={"return_token_ids": True})
        for choice in found.choices:
            assert of(choice) == (THOUGHTS[i], WORDS) and choice.finish_reason == "stop"
            ids = choice.model_extra["token_ids"]
            assert len(choice.logprobs.content) == len(ids)
        usage = found.usage
        assert usage.completion_tokens == 2 * len(ids)
        assert usage.completion_tokens_details.reasoning_tokens == 2 * ids.index(thinker.mark)


@pytest.mark.parametrize("everywhere", [False, pytest.param(True, marks=pytest.mark.families)])
def test_an_answer_that_is_cut_in_its_thought_is_all_thought(thinker: Thinker, everywhere: bool) -> None:
    """At each token of the thought and just behind it, or at few of them."""
    whole = thinker.chat(extra_body={"return_token_ids": True})
    n, at = whole.usage.completion_tokens, whole.choices[0].model_extra["token_ids"].index(thinker.mark)
    seen = set()
    cuts = (*range(1, at + 4), *range(at + 4, n, 4)) if everywhere else (1, *range(at - 1, at + 4), at + 12, n - 4)
    for most in cuts:
        found = thinker.chat(max_tokens=most)
        (choice,) = found.choices
        reasoning, content = of(choice)
        assert reasoning is not None and choice.finish_reason == "length"
        assert found.usage.completion_tokens_details.reasoning_tokens == min(most, at)
        if most <= at:
            assert content is None and f"{THOUGHTS[PLAIN]}\n".startswith(reasoning)
        else:
            assert reasoning == THOUGHTS[PLAIN] and WORDS.startswith(content or "")
        seen.add(content)
    assert None in seen and len(seen) > (5 if everywhere else 3) and 5 < at < n - 12
    (choice,) = thinker.chat(ENDLESS).choices
    assert (of(choice), choice.finish_reason) == ((THOUGHTS[ENDLESS], None), "stop")


def test_a_thought_that_is_not_wanted_is_left_out_and_counted(thinker: Thinker) -> None:
    found = thinker.chat(extra_body={"include_reasoning": False})
    assert of(found.choices[0]) == (None, WORDS) and "reasoning" not in found.choices[0].message.model_extra
    assert found.usage.completion_tokens_details.reasoning_tokens > 5
    hidden = thinker.chat(max_tokens=2, extra_body={"include_reasoning": False}).choices[0]
    assert of(hidden) == (None, None)
    deltas = [chunk.choices[0].delta for chunk in thinker.chat(stream=True, extra_body={"include_reasoning": False})]
    assert "".join(delta.content or "" for delta in deltas) == WORDS
    assert not any("reasoning" in delta.model_extra for delta in deltas)


# ---- what begins behind it


def test_stop_strings_and_min_tokens_begin_behind_it(thinker: Thinker) -> None:
    cut = thinker.chat(stop=["STOP"]).choices[0]
    assert (of(cut), cut.finish_reason) == ((THOUGHTS[PLAIN], WORDS.partition("STOP")[0]), "stop")
    never = thinker.chat(stop=["\n"]).choices[0]
    assert of(never) == (THOUGHTS[PLAIN], WORDS.partition("\n")[0])
    ids = thinker.chat(extra_body={"return_token_ids": True}).choices[0].model_extra["token_ids"]
    n_words = len(ids) - ids.index(thinker.mark) - 1  # its end among them
    for least, n in ((n_words - 1, len(ids)), (n_words + 2, len(ids) + 3)):
        longer = thinker.chat(max_tokens=len(ids) + 3, extra_body={"min_tokens": least})
        assert longer.usage.completion_tokens == n
    late = thinker.chat(stop=["STOP"], extra_body={"min_tokens": n_words - 1}).choices[0]
    assert of(late)[1] == WORDS
    assert thinker.chat(ENDLESS).usage.completion_tokens == 7
    endless = thinker.chat(ENDLESS, max_tokens=8, extra_body={"min_tokens": 1})
    assert endless.usage.completion_tokens == 8 and endless.choices[0].message.content is None


def test_a_form_begins_behind_it(thinker: Thinker) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": CITY, "strict": False}}
    for asked, words in (
        ({"response_format": schema}, '{"city":"Oslo"}'),
        ({"extra_body": {"structured_outputs": {"choice": ["nobody says this"]}}}, "nobody says this"),
        ({"extra_body": {"structured_outputs": {"regex": "a{3}"}}}, "aaa"),
    ):  # fmt: skip
        for choice in thinker.chat(CALLING, n=2, **asked).choices:
            reasoning, content = of(choice)
            assert (reasoning, choice.finish_reason) == (THOUGHTS[CALLING], "stop"), content
            assert (content or "").replace(" ", "") == words.replace(" ", "")
    endless = thinker.chat(ENDLESS, max_tokens=8, response_format=schema)
    assert endless.choices[0].finish_reason == "length" and endless.usage.completion_tokens == 8
    assert endless.choices[0].message.content is None, "only max_tokens ends a thought before a form"


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "weather"}}])
def test_calls_begin_behind_it(thinker: Thinker, choice: Any) -> None:
    found = thinker.chat(CALLING, tools=[TOOL], tool_choice=choice).choices[0]
    (call,) = found.message.tool_calls
    assert json.loads(call.function.arguments) == {"city": "Oslo"}
    assert of(found)[0] == THOUGHTS[CALLING]
    assert of(found)[1] == (WORDS.partition("\n")[0] if choice == "auto" else None)
    cut = thinker.chat(CALLING, tools=[TOOL], tool_choice=choice, max_tokens=12).choices[0]
    assert cut.message.tool_calls is None and cut.finish_reason == "length" and cut.message.content is None
    endless = thinker.chat(ENDLESS, tools=[TOOL], tool_choice=choice, max_tokens=8).choices[0]
    assert endless.finish_reason == ("stop" if choice == "auto" else "length")


# ---- as streams


def test_a_stream_brings_thought_then_words(thinker: Thinker) -> None:
    thoughts, words, finish = ["", ""], ["", ""], 0
    for chunk in thinker.chat(n=2, stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True}):
        usage = chunk.usage
        for choice in chunk.choices:
            thought, word = choice.delta.model_extra.get("reasoning", ""), choice.delta.content or ""
            assert not (thought and words[choice.index])
            thoughts[choice.index] += thought
            words[choice.index] += word
            finish += choice.finish_reason == "stop"
    assert (thoughts, words, finish) == ([THOUGHTS[PLAIN]] * 2, [WORDS] * 2, 2)
    n = thinker.chat().usage.completion_tokens_details.reasoning_tokens
    assert usage is not None and usage.completion_tokens_details.reasoning_tokens == 2 * n


def test_native_and_its_stream(thinker: Thinker) -> None:
    body: dict[str, Any] = {"inputs": [{"text": "How is it?"}], "parameters": thinker.bias(CALLING), "tools": [TOOL]}
    found = thinker.post("/chat", **body).json()
    assert (found["reasoning"], found["text"]) == (THOUGHTS[CALLING], WORDS.partition("\n")[0])
    assert found["finish_reason"] == "tool_calls" and len(found["tool_calls"]) == 1
    read = events(thinker.post("/chat", **body, stream=True))
    assert "".join(event.get("reasoning", "") for event in read) == THOUGHTS[CALLING]
    assert "".join(event["text"] for event in read) == found["text"]
    assert read[-1]["usage"]["completion_tokens_details"] == found["usage"]["completion_tokens_details"]
    several = thinker.post("/chat", **{**body, "parameters": {**thinker.bias(PLAIN), "n": 2}}).json()
    assert [one["reasoning"] for one in several["answers"]] == [THOUGHTS[PLAIN]] * 2
    cut = thinker.post("/chat", **{**body, "parameters": {**thinker.bias(PLAIN), "max_tokens": 2}}).json()
    assert cut["text"] == "" and THOUGHTS[PLAIN].startswith(cut["reasoning"])


def test_responses_and_their_stream(thinker: Thinker) -> None:
    """By openai-python, which accumulates the events itself."""
    bias = thinker.bias(PLAIN)
    body: Any = {
        "model": "thinks", "input": ASKED, "max_output_tokens": bias.pop("max_tokens"), "extra_body": bias,
        "include": ["message.output_text.logprobs"],
    }  # fmt: skip
    whole: Any = thinker.client.responses.create(**body)
    with thinker.client.responses.stream(**body) as stream:
        read = list(stream)
        streamed: Any = stream.get_final_response()
    for response in (whole, streamed):
        thought, message = response.output
        assert thought.type == "reasoning" and thought.status == "completed" and thought.summary == []
        assert [part.text for part in thought.content] == [THOUGHTS[PLAIN]]
        assert response.output_text == WORDS
        n = response.usage.output_tokens_details.reasoning_tokens
        assert n > 5 and len(message.content[0].logprobs) == response.usage.output_tokens - n - 1
    assert "".join(e.delta for e in read if e.type == "response.reasoning_text.delta") == THOUGHTS[PLAIN]
    kinds = [event.type.removeprefix("response.") for event in read]
    assert kinds.index("reasoning_text.done") < kinds.index("output_text.delta")
    assert kinds.count("content_part.done") == kinds.count("output_item.done") == 2
    assert [event.sequence_number for event in read] == list(range(len(read)))
    cut: Any = thinker.client.responses.create(**{**body, "max_output_tokens": 2})
    assert [(item.type, item.status) for item in cut.output] == [("reasoning", "incomplete")]
    ended: Any = thinker.client.responses.create(**{**body, "extra_body": thinker.bias(ENDLESS) | {"max_tokens": None}})
    assert [(item.type, item.status) for item in ended.output] == [("reasoning", "completed")]


def test_messages_and_their_stream(thinker: Thinker) -> None:
    body = {"messages": ASKED, "system": "x", "max_tokens": 120, "thinking": {"type": "adaptive"}}
    found = thinker.post("/v1/messages", **body).json()
    thinks, says = found["content"]
    assert (thinks["type"], says["type"]) == ("thinking", "text") and thinks["signature"]
    assert (thinks["thinking"], says["text"]) == (THOUGHTS[BARE], WORDS)
    lines = thinker.post("/v1/messages", **body, stream=True).text.split("\n")
    read = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    deltas = [event["delta"] for event in read if event["type"] == "content_block_delta"]
    assert "".join(delta.get("thinking", "") for delta in deltas) == thinks["thinking"]
    assert "".join(delta.get("text", "") for delta in deltas) == WORDS
    signed = [delta["type"] for delta in deltas].index("signature_delta")
    assert {delta["type"] for delta in deltas[:signed]} == {"thinking_delta"}
    assert [event["index"] for event in read if event["type"] == "content_block_stop"] == [0, 1]
    enabled = {"type": "enabled", "budget_tokens": 1024}
    cut = thinker.post("/v1/messages", **{**body, "max_tokens": 1, "thinking": enabled}).json()
    assert [block["type"] for block in cut["content"]] == ["thinking"] and cut["stop_reason"] == "max_tokens"


def test_a_text_is_just_a_text(thinker: Thinker) -> None:
    """As in vLLM: no thoughts are told apart where no template made the prompt."""
    body = {"prompt": "<|im_start|>assistant\n<think>\n", **thinker.bias(PLAIN)}
    text = thinker.post("/v1/completions", **body).json()["choices"][0]["text"]
    assert text == f"{THOUGHTS[PLAIN]}\n</think>\n\n{WORDS}"


# ---- earlier thoughts


def test_histories_in_every_form_make_the_same_prompt(thinker: Thinker) -> None:
    """Each route's answer is handed back as it came; of a call's thought, the template shows it to the next answer."""
    call = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
    result = {"role": "tool", "tool_call_id": "c", "content": "dry"}

    def count(**answer: Any) -> list[int]:
        history = [*ASKED, {"role": "assistant", "content": None, "tool_calls": [call], **answer}, result]
        found = thinker.post("/tokenize", messages=history, tools=[TOOL])
        assert found.status_code == 200, found.text
        ids: list[int] = found.json()["tokens"]
        return ids

    one = count(reasoning="hm, hm")
    assert one == count(reasoning_content="hm, hm") == count(reasoning=None, reasoning_content="hm, hm")
    assert one == count(content="<think>\nhm, hm\n</think>\n\n")
    assert one != count() and one != count(reasoning="ho, hm")
    assert count(reasoning="hm, hm", reasoning_content="other") == one
    native = {
        "history": [{"inputs": [{"text": "How is it?"}], "text": "", "reasoning": "hm, hm", "tool_calls": [call]}],
        "tool_results": [{"tool_call_id": "c", "inputs": [{"text": "dry"}]}], "tools": [TOOL],
    }  # fmt: skip
    assert len(thinker.post("/tokenize", **native).json()["tokens"]) == len(one)
    items = [
        *ASKED,
        {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "hm, hm"}]},
        {"type": "function_call", "call_id": "c", "name": "weather", "arguments": '{"city": "Oslo"}'},
        {"type": "function_call_output", "call_id": "c", "output": "dry"},
    ]  # fmt: skip
    tool = {"type": "function", **TOOL["function"]}  # type: ignore[dict-item]
    asked = thinker.post("/v1/responses", input=items, tools=[tool], max_output_tokens=1)
    assert asked.json()["usage"]["input_tokens"] == len(one), asked.text
    blocks = [
        *ASKED,
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm, hm", "signature": "s"},
            {"type": "tool_use", "id": "c", "name": "weather", "input": {"city": "Oslo"}},
        ]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "dry"}]},
    ]  # fmt: skip
    custom = {"name": "weather", "input_schema": CITY}
    counted = thinker.post("/v1/messages/count_tokens", messages=blocks, tools=[custom])
    assert counted.json()["input_tokens"] == len(one), counted.text


def test_wrong_thoughts_are_a_400_by_field(thinker: Thinker) -> None:
    for message, param in (
        ({"role": "assistant", "content": "x", "reasoning": 3}, "messages[1].reasoning"),
        ({"role": "assistant", "content": "x", "reasoning_content": ["x"]}, "messages[1].reasoning_content"),
    ):
        answer = thinker.post(CHAT, messages=[*ASKED, message, *ASKED])
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    begun = [*ASKED, {"role": "assistant", "content": "It"}]
    for asked, param in (
        # An answer is continued, not begun.
        ({"messages": begun, "thinking": {"type": "enabled", "budget_tokens": 2048}}, "thinking"),
        ({"thinking": {"type": "enabled"}}, "thinking"),
        ({"thinking": {"type": "enabled", "budget_tokens": 5}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "often"}}, "thinking.type"),
    ):
        answer = thinker.post("/v1/messages", **{"messages": ASKED, "max_tokens": 5, **asked})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


def test_a_prompt_that_opens_no_thought_has_none(thinker: Thinker) -> None:
    """An answer that is continued; and what users write of marks opens nothing."""
    begun = [*ASKED, {"role": "assistant", "content": "It"}]
    found = thinker.chat(messages=begun, extra_body={"continue_final_message": True}, max_tokens=3)
    assert found.choices[0].message.content and "reasoning" not in found.choices[0].message.model_extra
    assert found.usage.completion_tokens_details is None
    asked = [{"role": "user", "content": "<think>"}]
    bare = thinker.chat(messages=asked, extra_body={"add_generation_prompt": False}, max_tokens=3).choices[0]
    assert bare.message.content and "reasoning" not in bare.message.model_extra
    thinker.server.assert_nothing_held()
