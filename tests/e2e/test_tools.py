"""Tools over a running server: a checkpoint made to say given texts, whole and streamed.

Calls in the other form are read by the server of mistral3 in tests/e2e/test_families.py.
"""

import json
from typing import Any

import httpx
import openai
import pytest

from tests.e2e.running import RunningServer, data_url, picture
from tests.e2e.saying import ASKED, CALLS, OSLO, SAID, TOOLS, Saying, read, read_stream

pytestmark = pytest.mark.process


def test_an_answer_of_auto_is_words_and_calls_whole_and_in_pieces(saying: Saying) -> None:
    expected = [(words or None, calls, "tool_calls" if calls else "stop") for words, calls in SAID]
    assert [read(saying, i) for i in range(len(SAID))] == expected
    assert [read_stream(saying, i) for i in range(len(SAID))] == expected


def test_a_model_that_would_break_a_call_cannot(saying: Saying) -> None:
    """It would leave JSON, and is held to the tool's schema."""
    (choice,) = saying.chat(len(SAID), parallel_tool_calls=False).choices
    (call,) = choice.message.tool_calls
    assert (call.function.name, call.function.arguments, choice.finish_reason) == ("news", "{}", "tool_calls")


def test_a_demanded_call_is_one_though_the_model_would_say_words(saying: Saying) -> None:
    """And a stop string inside it leaves it cut, which no finish_reason of tool_calls hides."""
    named = {"type": "function", "function": {"name": "news"}}
    (choice,) = saying.chat(2, tool_choice=named).choices
    assert [call.function.name for call in choice.message.tool_calls] == ["news"]
    assert choice.finish_reason == "stop" and choice.message.content is None
    (cut,) = saying.chat(0, stop=["Oslo"]).choices
    assert cut.finish_reason == "stop" and cut.message.tool_calls[0].function.arguments == '{"city": "'


def test_several_answers_have_their_own_calls(saying: Saying) -> None:
    found = saying.chat(1, n=3, logprobs=True).choices
    ids = {call.id for choice in found for call in choice.message.tool_calls}
    assert len(ids) == 3 * len(SAID[1][1]) and all(choice.logprobs.content for choice in found)


def test_none_shows_the_tools_and_reads_no_call(saying: Saying) -> None:
    (choice,) = saying.chat(0, tool_choice="none").choices
    assert choice.message.tool_calls is None and choice.finish_reason == "stop"
    assert '"weather"' in choice.message.content
    without = saying.chat(2, tools=openai.omit).usage.prompt_tokens
    assert saying.chat(2, tool_choice="none").usage.prompt_tokens == saying.chat(2).usage.prompt_tokens > without


def test_a_call_that_is_cut_is_told_as_far_as_it_is(saying: Saying) -> None:
    seen = set()
    for most in range(7, 27, 3):  # a token has four characters and more
        (choice,) = saying.chat(0, max_tokens=most).choices
        made = choice.message.tool_calls
        assert choice.finish_reason == "length"
        for (name, arguments), call in zip(CALLS, made or [], strict=False):
            assert arguments.startswith(call.function.arguments) and call.function.name == name
            assert choice.message.content is None
        seen.add(made[0].function.arguments if made else None)
    assert None in seen and OSLO in seen and len(seen) > 3


def test_every_route_takes_back_what_it_gave_of_a_call_that_was_cut(saying: Saying) -> None:
    """Before its name, or in its arguments."""
    http, asked, seen = saying.server.http, ASKED[0], set()
    for most in (7, 20):
        bias = {**saying.bias(0), "max_tokens": most}
        tools = {"tools": TOOLS, **bias}
        message = saying.chat(0, max_tokens=most).choices[0].message.model_dump()
        seen.add(bool(message["tool_calls"]))
        said = http.post("/chat", json={"inputs": [{"text": "x"}], "tools": TOOLS, "parameters": bias}).json()
        entry = {"inputs": [{"text": "x"}], "text": said["text"], "tool_calls": said.get("tool_calls")}
        flat = [{"type": "function", **tool["function"], "strict": False} for tool in TOOLS]
        items = {"tools": flat, **{key: bias[key] for key in ("logit_bias", "temperature")}, "max_output_tokens": most}
        output = http.post("/v1/responses", json={"input": [asked], **items}).json()["output"]
        theirs = [{"name": one["name"], "input_schema": one["parameters"]} for one in flat]
        blocks = {"tools": theirs, "max_tokens": most, "tool_choice": {"type": "any"}}
        content = http.post("/v1/messages", json={"messages": [asked], **blocks}).json()["content"]
        again: list[tuple[str, dict[str, Any]]] = [
            ("/v1/chat/completions", {"messages": [asked, message, asked], **tools}),
            ("/v1/responses", {"input": [asked, *output, asked], **items}),
            ("/chat", {"history": [entry], "inputs": [{"text": "y"}], "tools": TOOLS, "parameters": bias}),
            ("/v1/messages", {"messages": [asked, {"role": "assistant", "content": content}, asked], **blocks}),
        ]
        for route, body in again:
            answer = http.post(route, json={**body, "tools": body["tools"][:1]})
            assert answer.status_code == 200, (route, most, answer.text)
    assert seen == {False, True}


def test_the_native_dialect_answers_with_calls(saying: Saying) -> None:
    words, calls = SAID[1]
    body = {"inputs": [{"text": "x"}], "tools": TOOLS, "parameters": saying.bias(1)}
    found = saying.server.http.post("/chat", json=body).json()
    assert (found["text"], found["finish_reason"]) == (words, "tool_calls")
    assert [(call["function"]["name"], call["function"]["arguments"]) for call in found["tool_calls"]] == calls
    events = saying.server.http.post("/chat", json={**body, "stream": True}).text.split("\n\n")
    read = [json.loads(event.removeprefix("data: ")) for event in events if event.startswith("data: {")]
    pieces = [piece for event in read for piece in event.get("tool_calls", [])]
    joined = ["".join(p["function"]["arguments"] for p in pieces if p["index"] == k) for k in range(len(calls))]
    assert joined == [arguments for _, arguments in calls] and read[-1]["finish_reason"] == "tool_calls"
    assert "".join(event["text"] for event in read) == words


def test_responses_answer_with_calls(saying: Saying) -> None:
    """As items, whole and streamed; handed back with their outputs they are the chat route's history."""
    tools = [{"type": "function", **tool["function"]} for tool in TOOLS]
    words, calls = SAID[1]
    bias = {**saying.bias(1), "max_output_tokens": 200}
    del bias["max_tokens"]
    body: Any = {"model": "said", "input": ASKED, "tools": tools, "extra_body": bias}
    whole: Any = saying.client.responses.create(**body)
    with saying.client.responses.stream(**body) as events:
        pieces = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
        streamed: Any = events.get_final_response()
    for response in (whole, streamed):
        message, *made = response.output
        assert response.status == "completed" and response.output_text == words and message.type == "message"
        assert [(call.name, call.arguments) for call in made if call.type == "function_call"] == calls
    assert "".join(pieces) == "".join(arguments for _, arguments in calls) and len(pieces) > len(calls)
    outputs: list[Any] = [
        {"type": "function_call_output", "call_id": call.call_id, "output": [{"type": "input_text", "text": "dry"}]}
        for call in whole.output
        if call.type == "function_call"
    ]
    history = {**body, "input": [*ASKED, *whole.output, *outputs]}
    history["extra_body"] = {**bias, "logit_bias": saying.bias(2)["logit_bias"]}
    assert saying.client.responses.create(**history).output_text == SAID[2][0]
    outputs[0]["output"].append({"type": "input_image", "image_url": data_url(picture(60, 60))})
    seen = saying.client.responses.create(**{**history, "input": [*ASKED, *whole.output, *outputs]})
    assert seen.usage.input_tokens_details.to_dict()["image_tokens"] > 0
    saying.server.assert_nothing_held()


def test_results_are_handed_back(saying: Saying) -> None:
    made = saying.chat(1).choices[0].message
    history: list[Any] = [*ASKED, made.model_dump(exclude_none=True)]
    history += [{"role": "tool", "tool_call_id": call.id, "content": "dry"} for call in made.tool_calls]
    assert saying.chat(2, messages=history).choices[0].message.content == SAID[2][0]


def test_native_results_become_the_same_ids(saying: Saying) -> None:
    """What /chat answered is handed back as it came, and a picture with it."""
    post = saying.server.http.post
    asked = [{"text": ASKED[0]["content"]}]
    body = {"inputs": asked, "tools": TOOLS, "parameters": saying.bias(0)}
    found = post("/chat", json=body).json()
    image = data_url(picture(120, 90))
    shown = {"type": "image_url", "image_url": {"url": image}}
    results: list[list[Any]] = [[{"text": "dry"}], [{"image": image}, {"text": "news"}], [{"text": "wet"}]]
    contents: list[Any] = ["dry", [shown, {"type": "text", "text": "news"}], "wet"]
    ids = [call["id"] for call in found["tool_calls"]]
    native = {
        "history": [{"inputs": asked, "text": found["text"], "tool_calls": found["tool_calls"]}],
        "tool_results": [{"tool_call_id": id, "inputs": one} for id, one in zip(ids, results, strict=True)],
        "tools": TOOLS,
    }
    messages = [
        {"role": "user", "content": [{"type": "text", "text": ASKED[0]["content"]}]},
        {"role": "assistant", "content": None, "tool_calls": found["tool_calls"]},
        *({"role": "tool", "tool_call_id": id, "content": one} for id, one in zip(ids, contents, strict=True)),
    ]
    one, other = (post("/tokenize", json=given).json() for given in (native, {"messages": messages, "tools": TOOLS}))
    assert one["tokens"] == other["tokens"] and one["count"] > 100
    answer = post("/chat", json={**native, "parameters": saying.bias(2)}).json()
    assert answer["text"] == SAID[2][0] and answer["usage"]["prompt_tokens"] == one["count"]


def refused(server: RunningServer, **body: Any) -> Any:
    answer: httpx.Response = server.http.post("/v1/chat/completions", json={"messages": ASKED, **body})
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]


def test_wrong_tools_are_a_400_by_field(saying: Saying) -> None:
    named = {"type": "function", "function": {"name": "other"}}
    assert refused(saying.server, tools=TOOLS, tool_choice=named)["param"] == "tool_choice.function.name"
    assert refused(saying.server, tool_choice="required")["param"] == "tool_choice"
    assert refused(saying.server, tools=[*TOOLS, *TOOLS])["param"] == "tools[2].function.name"
    assert refused(saying.server, functions=[{"name": "x"}])["param"] == "functions"
    assert "--chat-template" not in refused(saying.server, tools=[{}])["message"]
    body = {"inputs": [{"text": "x"}], "tools": {}}
    assert saying.server.http.post("/chat", json=body).json()["error"]["param"] == "tools"
    saying.server.assert_nothing_held()


def test_tokenize_counts_the_tools(saying: Saying) -> None:
    counts = [
        saying.server.http.post("/tokenize", json={"messages": ASKED, **more}).json()["count"]
        for more in ({}, {"tools": TOOLS}, {"tools": TOOLS[:1]})
    ]
    assert counts[0] < counts[2] < counts[1] and counts[1] == saying.chat(0).usage.prompt_tokens


def test_a_template_that_cannot_show_tools_says_what_helps(server: RunningServer) -> None:
    error = refused(server, tools=TOOLS)
    assert error["param"] == "tools" and "--chat-template FILE" in error["message"]
    assert "cannot show tools" in error["message"]
