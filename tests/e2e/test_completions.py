"""POST /v1/completions, /tokenize and /detokenize of a running server: texts without a template, and ids."""

import json
from typing import Any

import pytest

from tests.e2e.running import RunningServer, data_url, picture

pytestmark = pytest.mark.process

PICTURE = data_url(picture(560, 560))
TEXT = "one two <|im_start|> three"


def complete(server: RunningServer, **body: Any) -> Any:
    answer = server.http.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def events(server: RunningServer, **body: Any) -> list[Any]:
    """The chunks of a stream, which ends as it should."""
    answer = server.http.post("/v1/completions", json={"stream": True, **body})
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_a_text_and_its_ids_are_continued_alike(server: RunningServer) -> None:
    counted = server.http.post("/tokenize", json={"prompt": TEXT, "return_token_strs": True}).json()
    assert "".join(counted["token_strs"]).replace("Ġ", " ") == TEXT and counted["tokens"] == counted["ids"]
    assert server.http.post("/detokenize", json={"tokens": counted["tokens"]}).json() == {"prompt": TEXT}
    wishes = {"temperature": 0, "max_tokens": 6, "logprobs": 2, "ignore_eos": True}
    by_text, by_ids = (complete(server, prompt=prompt, **wishes) for prompt in (TEXT, counted["tokens"]))
    assert by_text["choices"] == by_ids["choices"] and by_text["object"] == "text_completion"
    assert by_text["usage"] == {
        "prompt_tokens": counted["count"], "completion_tokens": 6, "total_tokens": counted["count"] + 6,
        "prompt_tokens_details": by_text["usage"]["prompt_tokens_details"],
    }  # fmt: skip
    chunks = events(server, prompt=TEXT, **wishes)
    assert "".join(c["choices"][0]["text"] for c in chunks) == by_text["choices"][0]["text"]
    tokens = [token for c in chunks for token in c["choices"][0]["logprobs"]["tokens"]]
    assert tokens == by_text["choices"][0]["logprobs"]["tokens"] and len(tokens) == 6


def test_of_each_prompt_it_is_told_what_was_cached(server: RunningServer) -> None:
    """Whole blocks of 16 tokens, but that of the last one: in a chunk of its own prompt, in the end of both."""
    prompts = [" ".join(f"{word} {i}" for i in range(n)) for word, n in (("short", 8), ("a long one", 12))]
    counts = [server.http.post("/tokenize", json={"prompt": prompt}).json()["count"] for prompt in prompts]
    kept = [(count - 1) // 16 * 16 for count in counts]
    assert 0 < kept[0] < kept[1]
    options = {"include_usage": True, "continuous_usage_stats": True}
    wishes = {"prompt": prompts, "max_tokens": 3, "ignore_eos": True}
    assert complete(server, **wishes)["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    *chunks, last = events(server, **wishes, stream_options=options)
    for chunk in chunks:
        index, usage = chunk["choices"][0]["index"], chunk["usage"]
        assert usage["prompt_tokens"] == counts[index]
        assert usage["prompt_tokens_details"] == {"cached_tokens": kept[index]}
    assert last["usage"]["prompt_tokens"] == sum(counts) and last["choices"] == []
    assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": sum(kept)}


def test_a_prompt_gets_what_its_tokens_got_when_they_were_drawn(server: RunningServer) -> None:
    """What scorers ask: the whole text again, echoed with its log-probabilities."""
    ids = server.http.post("/tokenize", json={"prompt": TEXT}).json()["tokens"]
    bias = {"logit_bias": {str(token_id): 100 for token_id in range(65, 91)}}  # of letters, so that text is ids again
    drawn = complete(server, prompt=ids, max_tokens=5, logprobs=3, **bias)["choices"][0]
    letters = [ord(letter) for letter in drawn["text"]]
    more = server.http.post("/tokenize", json={"prompt": drawn["text"]}).json()["tokens"]
    wishes = {"echo": True, "logprobs": 3, "max_tokens": 0}
    echoed = complete(server, prompt=[*ids, *more], **wishes)
    (choice,) = echoed["choices"]
    assert choice["text"] == TEXT + drawn["text"] and echoed["usage"]["completion_tokens"] == 0 and letters
    logprobs = choice["logprobs"]
    assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
    assert len(logprobs["tokens"]) == len(logprobs["text_offset"]) == len(ids) + len(more)
    if len(more) == 5:
        assert logprobs["token_logprobs"][len(ids) :] == pytest.approx(drawn["logprobs"]["token_logprobs"], abs=1e-4)
    (whole,) = events(server, prompt=[*ids, *more], **wishes)
    assert whole["choices"][0] == choice


def test_several_prompts_are_answered_in_their_order(server: RunningServer) -> None:
    wishes = {"temperature": 0, "max_tokens": 4, "ignore_eos": True, "echo": True}
    alone = [complete(server, prompt=prompt, **wishes)["choices"][0]["text"] for prompt in ("one", "two", "three")]
    together = complete(server, prompt=["one", "two", "three"], n=2, **wishes)
    assert [c["index"] for c in together["choices"]] == list(range(6))
    assert [c["text"] for c in together["choices"]] == [text for text in alone for _ in range(2)]
    chunks = events(server, prompt=["one", "two", "three"], stream_options={"include_usage": True}, **wishes)
    for index, text in enumerate(alone):
        choices = [c["choices"][0] for c in chunks if c["choices"] and c["choices"][0]["index"] == index]
        assert "".join(c["text"] for c in choices) == text and choices[-1]["finish_reason"] == "length"
    assert chunks[-1]["usage"]["completion_tokens"] == 12


def test_ids_that_stand_for_media_are_refused(server: RunningServer) -> None:
    mark = server.http.post("/tokenize", json={"messages": [{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": PICTURE}}]}]}).json()  # fmt: skip
    pad = max(set(mark["tokens"]), key=mark["tokens"].count)
    answer = server.http.post("/v1/completions", json={"prompt": [[1], [5, pad]]})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "prompt[1]"
    assert "marks media" in answer.json()["error"]["message"]
    beyond = server.http.post("/v1/completions", json={"prompt": [1 << 20]})
    assert beyond.status_code == 400 and beyond.json()["error"]["param"] == "prompt"
    server.assert_nothing_held()


def test_what_does_not_fit_is_refused(small: RunningServer) -> None:
    for prompt in ("a " * 10_000, [5] * 10_000, "a" * 900_000):
        error = small.http.post("/v1/completions", json={"prompt": prompt}).json()["error"]
        assert (error["param"], error["code"]) == ("prompt", "context_length_exceeded")
    assert complete(small, prompt=[5] * 9996, max_tokens=50, ignore_eos=True)["usage"]["completion_tokens"] == 4


def test_answers_have_a_fingerprint(server: RunningServer) -> None:
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    prints = {complete(server, prompt="a", max_tokens=1)["system_fingerprint"] for _ in range(2)}
    prints.add(server.http.post("/v1/chat/completions", json=chat).json()["system_fingerprint"])
    assert len(prints) == 1 and prints.pop().startswith("fp_")
