"""What requests to a server say of vLLM's fields: each honoured one with a change, and values that are wrong.

And how a test asks, and reads what comes back.
"""

import json
from typing import Any

import httpx

from server.http.routes.vllm_fields import FIELDS
from tests.e2e.running import RunningServer, data_url, picture, uncached
from tokenization.chat.tool_offer import FIELDS as TOOLS

CHAT, TOKENIZE = "/v1/chat/completions", "/tokenize"
PICTURE = {"type": "image_url", "image_url": {"url": data_url(picture(240, 160))}}
ASKED = [{"role": "user", "content": [PICTURE, {"type": "text", "text": "what is it?"}]}]
BEGUN = [*ASKED, {"role": "assistant", "content": "It is"}]
BASE: dict[str, Any] = {"messages": ASKED, "max_tokens": 12, "temperature": 0, "ignore_eos": True}
A, B = 32, 33  # a byte-level vocabulary's letters
DIGITS = list(range(15, 25))
LONG = {"max_tokens": 24}  # until a token comes again
HOT = {"temperature": 1.5, "seed": 3}
ANY: list[Any] = [True, 7, "x", ["x"], {"a": 1}]
REFUSED = [field for field in FIELDS if field.treatment == "refused"]
# For each honoured field: what stands beside it both times, and what it is set to.
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
    "presence_penalty": (LONG, {"presence_penalty": 2}),
    "frequency_penalty": (LONG, {"frequency_penalty": 2}),
    "repetition_penalty": (LONG, {"repetition_penalty": 10}),
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
BY_HAND = {"model", "stream", "stream_options", "skip_special_tokens", "ignore_eos"}  # each has a test of its own
ELSEWHERE = {"cache_salt", "echo", "include_reasoning", *TOOLS}  # tests/e2e, tests/server/http/routes

# What changes the prompt: it is counted as it is answered.
COUNTED: list[dict[str, Any]] = [
    {},
    {"add_generation_prompt": False},
    {"messages": BEGUN, "continue_final_message": True},
    {"chat_template_kwargs": {"add_vision_id": True}},
    {"mm_processor_kwargs": {"max_pixels": 3136 * 4}},
    {"mm_processor_kwargs": {"size": {"shortest_edge": 500_000}}},
]
# Wrong values of honoured fields, and the parameter that the 400 names.
WRONG: list[tuple[dict[str, Any], str]] = [
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
]


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


def refused(found: httpx.Response) -> dict[str, Any]:
    assert found.status_code == 400, found.text
    error: dict[str, Any] = found.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["type"] == "invalid_request_error"
    return error


def events_with_error(found: httpx.Response) -> dict[str, Any]:
    lines = [line for line in found.text.split("\n") if line.startswith("data: ")]
    error: dict[str, Any] = json.loads(lines[-1].removeprefix("data: "))["error"]
    return error
