"""A server whose model says given texts: words, and calls in the form of hermes. Several files of tests share it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.running import REPO, RunningServer, running
from tests.tiny.qwen2_vl import write_qwen2_vl
from tests.tiny.said import made_to_say

CITY = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "weather", "description": "a forecast", "parameters": CITY}},
    {"type": "function", "function": {"name": "news", "parameters": {"type": "object", "properties": {}}}},
]
OSLO, ROME = '{"city": "Oslo", "days": 3}', '{"city": "Rome, the \\"eternal\\" {one]"}'
ASKED: list[Any] = [{"role": "user", "content": "How is it?"}]
# What the models say: words, the mark of calls, what they call.
CALLS = [("weather", OSLO), ("news", "{}"), ("weather", ROME)]
SAID: list[tuple[str, list[tuple[str, str]]]] = [
    ("", CALLS),
    ("Let me have a look there.", CALLS),
    ("It is dry, and I need no tools.", []),
]
BROKEN = '<tool_call>\n{"name": "news", "arguments": {"x" 3]} and so on'
FORMS = {
    "hermes": ("<tool_call>\n", "\n</tool_call>\n<tool_call>\n", "\n</tool_call>"),
    "mistral": ("[TOOL_CALLS][", ", ", "]"),
}


def said(form: str, words: str, calls: list[tuple[str, str]]) -> str:
    opening, between, closing = FORMS[form]
    made = [f'{{"name": "{name}", "arguments": {arguments}}}' for name, arguments in calls]
    blank = "\n" if words and calls else ""
    return words + blank + (opening + between.join(made) + closing if calls else "")


class Saying:
    """A server whose model says SAID[i] where `bias(i)` is asked for."""

    def __init__(self, server: RunningServer, first: list[int]) -> None:
        self.server = server
        self.client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        self._first = first

    def bias(self, i: int) -> dict[str, Any]:
        return {"logit_bias": {str(self._first[i]): 100}, "temperature": 0, "max_tokens": 200}

    def chat(self, i: int, **body: Any) -> Any:
        given: dict[str, Any] = {"messages": ASKED, "tools": TOOLS, **self.bias(i), **body}
        return self.client.chat.completions.create(model="said", extra_body={}, **given)


def read(saying: Saying, i: int) -> tuple[str | None, list[tuple[str, str]], str]:
    """Words, calls and finish_reason of one answer."""
    (choice,) = saying.chat(i).choices
    made = choice.message.tool_calls or []
    assert len({call.id for call in made}) == len(made) and all(call.type == "function" for call in made)
    return choice.message.content, [(one.function.name, one.function.arguments) for one in made], choice.finish_reason


def read_stream(saying: Saying, i: int) -> tuple[str | None, list[tuple[str, str]], str]:
    """The same of the pieces of a stream."""
    text, made, n_pieces, finish, usage = "", dict[int, list[str]](), 0, list[str](), None
    for chunk in saying.chat(i, stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            finish += [choice.finish_reason] if choice.finish_reason else []
            for piece in choice.delta.tool_calls or []:
                if piece.id:
                    assert piece.index == len(made) and piece.type == "function"
                    made[piece.index] = [piece.function.name, ""]
                made[piece.index][1] += piece.function.arguments or ""
                n_pieces += 1
    assert n_pieces > len(made) + 2 if made else n_pieces == 0
    assert usage is not None and usage.completion_tokens == saying.chat(i).usage.completion_tokens
    (told,) = finish
    return text or None, [(name, arguments) for name, arguments in (made[k] for k in sorted(made))], told


@pytest.fixture(scope="session")
def saying(shm_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Saying]:
    """Of a family whose published template shows no tools: the operator's is given by --chat-template. Shared."""
    model, template = tmp_path_factory.mktemp("said") / "said", REPO / "examples" / "templates" / "qwen2_vl_tools.jinja"
    texts = [*(said("hermes", *one) for one in SAID), BROKEN]
    first = made_to_say(write_qwen2_vl(model, tied=False), texts, "<|im_end|>")
    flags = ("--workers", "1", "--chat-template", str(template))
    root = shm_root.with_name(f"{shm_root.name}-hermes")
    with running(model, root, tmp_path_factory.mktemp("logs"), *flags) as server:
        one = Saying(server, first)
        with one.client:
            yield one
