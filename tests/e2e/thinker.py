"""A checkpoint that is made to think given thoughts, and a server of it as tests ask it."""

import json
from pathlib import Path
from typing import Any

import httpx
import openai

from tests.e2e.running import RunningServer
from tests.layouts.templates import QWEN3_VL_THINKING
from tests.tiny.qwen3_vl import write_qwen3_vl
from tests.tiny.said import made_to_say

CITY = {
    "type": "object", "properties": {"city": {"enum": ["Oslo"]}}, "required": ["city"], "additionalProperties": False
}  # fmt: skip
TOOL = {"type": "function", "function": {"name": "weather", "parameters": CITY}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
WORDS = f"It is dry in Oslo; a STOP.\n{CALL}"  # where no tools are given, the call is text
THOUGHTS = [
    "First of all: where is the STOP in it?",
    f"I might write\n{CALL}\nbut I do not.",
    "This thought has no end",
    "A prompt that ends in the mark itself.",
]
PLAIN, CALLING, ENDLESS, BARE = range(len(THOUGHTS))
# Behind a system message the prompt ends with the mark, which BARE follows without a bias.
TEMPLATE = QWEN3_VL_THINKING.replace(
    "assistant\n<think>\n' }}", "assistant\n<think>' + ('' if messages[0].role == 'system' else '\n') }}"
)
ASKED: list[Any] = [{"role": "user", "content": "How is it?"}]


class Thinker:
    """A server whose model thinks THOUGHTS[i] where `bias(i)` is asked for, and then says WORDS."""

    def __init__(self, server: RunningServer, first: list[int], mark: int) -> None:
        self.server, self._first, self.mark = server, first, mark
        self.client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)

    def bias(self, i: int) -> dict[str, Any]:
        return {"logit_bias": {str(self._first[i]): 100}, "temperature": 0, "max_tokens": 120}

    def chat(self, i: int = PLAIN, **body: Any) -> Any:
        given: dict[str, Any] = {"messages": ASKED, **self.bias(i), **body}
        return self.client.chat.completions.create(model="thinks", **given)

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.server.http.post(path, json=body)


def write_thinker(path: Path) -> tuple[list[int], int]:
    """A checkpoint whose marks are tokens that are not special, as in the published files. -> first ids, the mark's"""
    texts = [f"{thought}\n</think>\n\n{WORDS}" for thought in THOUGHTS]
    texts[ENDLESS], texts[BARE] = THOUGHTS[ENDLESS], "<think>" + texts[BARE]
    first = made_to_say(write_qwen3_vl(path, tied=False), texts, "<|im_end|>", ["</think>", "<think>"])
    (path / "chat_template.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    file = path / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    marks = [token for token in tokenizer["added_tokens"] if token["content"] in ("<think>", "</think>")]
    assert all(token["content"] != "\n" for token in tokenizer["added_tokens"]), "the prompt ends so: a bias must count"
    for token in marks:
        token["special"] = False
    file.write_text(json.dumps(tokenizer))
    return first, next(token["id"] for token in marks if token["content"] == "</think>")
