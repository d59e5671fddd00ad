"""POST /v1/responses of a running server: the answers of the chat route under other names, and its own errors."""

import json
import random
from typing import Any

import httpx
import openai
import pytest

from tests.e2e.audio_chats import QUESTION, SILENT, SOUND, completion, text_of
from tests.e2e.running import RunningServer
from tests.e2e.test_chat import IMAGE, complete, image_part
from tests.server.http.routes.test_responses_body import PLACES, WRONG, places, planted
from tests.server.http.routes.test_responses_events import EVENT, parsed, untimed

pytestmark = pytest.mark.process

GREEDY: dict[str, Any] = {"max_output_tokens": 8, "temperature": 0, "ignore_eos": True}
TEXT = {"type": "input_text", "text": "what is it?"}
PICTURE = {"type": "input_image", "image_url": IMAGE}
SHOWN = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}


def post(server: RunningServer, **body: Any) -> httpx.Response:
    answer: httpx.Response = server.http.post("/v1/responses", json=body)
    return answer


def answered(server: RunningServer, *parts: dict[str, Any], **body: Any) -> Any:
    answer = post(server, **{"input": [{"role": "user", "content": [*parts]}], **GREEDY, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def said(response: Any) -> str:
    [item] = response["output"]
    [part] = item["content"]
    text: str = part["text"]
    return text


def test_an_answer_is_that_of_the_chat_route(server: RunningServer) -> None:
    chat = complete(server, [{"role": "user", "content": [image_part(), {"type": "text", "text": TEXT["text"]}]}])
    response = answered(server, PICTURE, TEXT)
    assert said(response) == chat["choices"][0]["message"]["content"] != ""
    assert response["status"] == "incomplete" and response["incomplete_details"] == {"reason": "max_output_tokens"}
    usage, counts = response["usage"], chat["usage"]
    assert (usage["input_tokens"], usage["output_tokens"]) == (counts["prompt_tokens"], 8)
    assert usage["input_tokens_details"]["image_tokens"] == counts["prompt_tokens_details"]["image_tokens"] > 0


def test_a_second_turn_finds_the_first_one_kept(server: RunningServer) -> None:
    """As the chat route renders it: what the first turn left in the cache is found."""
    words = {"type": "input_text", "text": "one two three four five six seven eight nine ten " * 8}
    first = answered(server, words)
    history = [{"role": "user", "content": [words]}, *first["output"], {"role": "user", "content": "and now?"}]
    second = answered(server, input=history)
    kept = second["usage"]["input_tokens_details"]["cached_tokens"]
    assert kept >= first["usage"]["input_tokens"] // 2 > 0
    messages = [
        {"role": "user", "content": words["text"]},
        {"role": "assistant", "content": said(first)},
        {"role": "user", "content": "and now?"},
    ]
    assert said(second) == complete(server, messages)["choices"][0]["message"]["content"]


def test_a_stream_of_the_server_ends_in_the_plain_answer(server: RunningServer) -> None:
    body = {"input": [{"role": "user", "content": [PICTURE, TEXT]}], **GREEDY, **SHOWN}
    answer = post(server, **body, stream=True)
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = parsed(answer.content)
    for event in events:
        EVENT.validate_python(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    ours = {"id", "output", "usage"}
    last, whole = untimed(events[-1]["response"]), untimed(post(server, **body).json())
    assert {key: last[key] for key in last.keys() - ours} == {key: whole[key] for key in whole.keys() - ours}
    [part], [plain] = last["output"][0]["content"], whole["output"][0]["content"]
    assert part["text"] == plain["text"] and len(part["logprobs"]) == len(plain["logprobs"]) == 8
    assert [one["token"] for one in part["logprobs"]] == [one["token"] for one in plain["logprobs"]]


def test_the_sdk_streams_and_asks_by_a_form(server: RunningServer) -> None:
    shape = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    form: Any = {"format": {"type": "json_schema", "name": "shape", "schema": shape, "strict": True}}
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        with client.responses.stream(model="tiny", input="Hi", max_output_tokens=64, text=form) as events:
            found = json.loads(events.get_final_response().output_text)
    assert found in ({"a": 1}, {"a": 2})


def test_sounds_and_files_are_heard_as_on_the_chat_route(omni: RunningServer) -> None:
    question = {"type": "input_text", **QUESTION}
    plain = text_of(completion(omni, {"type": "audio_url", "audio_url": {"url": SOUND["audio"]}}))
    encoded = SOUND["audio"].partition(",")[2]
    for part in (
        {"type": "input_audio", "input_audio": {"data": encoded, "format": "wav"}},
        {"type": "input_file", "file_data": SOUND["audio"], "filename": "a.wav"},
        {"type": "input_file", "file_data": encoded, "filename": "a.wav"},
    ):
        assert said(answered(omni, part, question)) == plain, part
    film = {key: value for key, value in SILENT.items() if key != "video"}
    seen = text_of(completion(omni, {"type": "video_url", "video_url": {"url": SILENT["video"], **film}}))
    assert said(answered(omni, {"type": "input_file", "file_data": SILENT["video"], **film}, question)) == seen


FAR = 99_999_999
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a damaged picture": ({"input": [{"role": "user", "content": [
        TEXT, {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}]}]}, "input[0].content[1].image_url"),
    "a sound": ({"input": [{"role": "user", "content": [{"type": "input_file", "file_data": SOUND["audio"]}]}]},
                "input[0].content[0].file_data"),
    "a path": ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "/etc/passwd"}]}]},
               "input[0].content[0].image_url"),
    "too long": ({"input": "one two " * 40_000}, "input"),
    "a schema": ({"text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "thing"}}}},
                 "text.format.schema"),
    "an id": ({"stop_token_ids": [FAR]}, "stop_token_ids"),
    "tools": ({"tools": [{"type": "function", "name": "a"}]}, "tools"),
    "a call": ({"input": [{"role": "user", "content": "x"}, {"type": "function_call", "call_id": "c", "name": "a",
                                                             "arguments": "{}"}]}, "input[1]"),
    "a reference": ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0]"),
    "a model": ({"model": "other"}, "model"),
}  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_an_ordinary_answer_that_names_the_field(
    server: RunningServer, name: str, stream: bool
) -> None:
    """Whoever finds it: the reader, the service, a worker or the engine."""
    body, param = REFUSED[name]
    answer = post(server, **{"input": "Hi", **GREEDY, "stream": stream, **body})
    assert answer.status_code == (404 if name == "a model" else 400), answer.text
    assert answer.json()["error"]["param"] == param, answer.text
    server.assert_nothing_held()


def test_an_error_in_a_begun_stream_is_its_two_events(server: RunningServer) -> None:
    """One id may be drawn, and never twice in a row: the second token cannot be."""
    ids = server.http.post("/tokenize", json={"prompt": "zz"}).json()["ids"]
    assert len(ids) == 2 and ids[0] == ids[1]
    rules = {"allowed_token_ids": [ids[0]], "bad_words": ["zz"], **GREEDY}
    events = parsed(post(server, input="Hi", stream=True, **rules).content)
    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
    assert events[-2]["error"]["param"] == events[-2]["param"] == "allowed_token_ids"
    assert events[-1]["response"]["error"]["code"] == "invalid_prompt"
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        with pytest.raises(openai.APIError) as caught:
            list(client.responses.create(model="tiny", input="Hi", stream=True, extra_body=rules))
    assert "no token is left" in caught.value.message
    server.assert_nothing_held()


def test_wrong_values_anywhere_are_never_our_error(server: RunningServer) -> None:
    """Of those that the unit test tries, some, as a client sees them, where what is right is answered."""
    rng = random.Random(36)
    content = [PICTURE, {"type": "input_file", "file_data": IMAGE}, TEXT]
    right = {key: value for key, value in PLACES.items() if key not in ("tools", "tool_choice", "stream")}
    right |= {"model": "tiny", "input": [{"role": "user", "content": content}, PLACES["input"][1]], "text": {}}
    assert post(server, **right).status_code == 200
    paths, statuses = places(right), set()
    for _ in range(80):
        answer = post(server, **planted(rng.choice(paths), rng.choice(WRONG), right))
        statuses.add(answer.status_code)
        assert answer.status_code == 200 or answer.json()["error"]["param"], answer.text
    assert {200, 400} <= statuses <= {200, 400, 404}
    server.assert_nothing_held()
