"""What Claude Code and Codex send becomes a prompt of Qwen3-VL with all their words; tests/e2e has it answered."""

import copy
import json
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from configs.checkpoint import Checkpoint
from model.families.qwen3_vl.processor import Qwen3VLProcessor
from server.http.routes.messages import read_counted, read_messages
from server.http.routes.responses_body import read_responses
from server.requests.refusal import Refusal
from tests.e2e.coding_clients import CLAUDE_CODE, CODEX
from tests.layouts.templates import QWEN3_VL
from tests.tables import each_of
from tests.tiny.qwen3_vl import write_qwen3_vl
from tokenization.chat.errors import ChatError
from tokenization.chat.parts import Chat, Prompt

pytestmark = pytest.mark.network

PICTURE = "<|vision_start|><|image_pad|><|vision_end|>"


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Qwen3VLProcessor:
    path = write_qwen3_vl(tmp_path_factory.mktemp("coding") / "tiny")
    (path / "chat_template.json").write_text(json.dumps({"chat_template": QWEN3_VL}))
    return Qwen3VLProcessor(Checkpoint(path), 1 << 30)


def raw(body: dict[str, Any], **fields: Any) -> bytes:
    return json.dumps({**body, **fields}).encode()


def shown(host: Qwen3VLProcessor, chat: Prompt) -> str:
    assert isinstance(chat, Chat)
    assert len([token for token in host.render(host.fit(chat)) if token == host.placeholders["image"]]) == 1
    return "".join(text for text, _ in host.template.render(chat))


def left_out(chat: Prompt) -> tuple[str, ...]:
    assert isinstance(chat, Chat)
    return chat.left_out


def theirs(messages: list[Any], tools: list[Any]) -> str:
    (text,), _ = render_jinja_template([messages], chat_template=QWEN3_VL, tools=tools, add_generation_prompt=True)
    return str(text)


def function(tool: dict[str, Any], parameters: str) -> dict[str, Any]:
    """As the chat route has a tool; `parameters` is what this route calls the schema."""
    told = {"name": tool["name"], "description": tool["description"], "parameters": tool[parameters]}
    return {"type": "function", "function": told | ({"strict": False} if "strict" in tool else {})}


def test_claude_codes_request(host: Qwen3VLProcessor) -> None:
    request = read_messages(raw(CLAUDE_CODE), "r1")
    user, later = CLAUDE_CODE["messages"]
    expected = theirs(
        [
            {"role": "system", "content": "\n".join(block["text"] for block in CLAUDE_CODE["system"])},
            user,
            {**later, "role": "user"},
        ],
        [function(tool, "input_schema") for tool in CLAUDE_CODE["tools"][:2]],
    )
    assert shown(host, request.chat) == expected and PICTURE in expected and "MCP Server" in expected
    assert left_out(request.chat) == ("web_search_20250305 web_search",) and not request.wants_thoughts
    assert request.tools is not None and [tool.name for tool in request.tools.tools] == ["Bash", "Read"]
    counted = {key: value for key, value in CLAUDE_CODE.items() if key not in ("max_tokens", "stream", "metadata")}
    assert read_counted(raw(counted), "r1").chat == request.chat


def test_codexs_request(host: Qwen3VLProcessor) -> None:
    asked = read_responses(raw(CODEX), "r1")
    developer, context, question = copy.deepcopy(CODEX["input"])
    parts = [{"type": "image"} if part["type"] == "input_image" else {"type": "text", "text": part["text"]}
             for part in question["content"]]  # fmt: skip
    expected = theirs(
        [
            {"role": "system", "content": f"{CODEX['instructions']}\n\n{developer['content'][0]['text']}"},
            {"role": "user", "content": context["content"][0]["text"]},
            {"role": "user", "content": parts},
        ],
        [function(tool, "parameters") for tool in CODEX["tools"][:2]],
    )
    assert shown(host, asked.request.chat) == expected and PICTURE in expected
    assert left_out(asked.request.chat) == ("custom apply_patch", "web_search", "namespace mcp__files")
    assert [tool["name"] for tool in asked.said["tools"]] == ["exec_command", "update_plan"]


@each_of(
    ("fields", "param"),
    [
        ({"tools": CLAUDE_CODE["tools"][2:]}, "tools[0].type"),
        ({"tool_choice": {"type": "tool", "name": "web_search"}}, "tool_choice.name"),
        ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "context_management.edits[0]"),
        ({"context_management": {"edits": [{"type": "clear_thinking_20251015"}]}}, "context_management.edits[0]"),
    ],
)
def test_what_claude_code_would_rely_on_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises((Refusal, ChatError)) as caught:
        read_messages(raw(CLAUDE_CODE, **fields), "r1")
    error: Any = caught.value
    assert error.param == param


@each_of("value", [None, {}, {"edits": None}, {"edits": []}, {"edits": [
    {"type": "clear_thinking_20251015", "keep": {"type": "all"}}]}])  # fmt: skip
def test_context_management_that_clears_nothing_changes_nothing(value: Any) -> None:
    assert read_messages(raw(CLAUDE_CODE, context_management=value), "r1") == read_messages(raw(CLAUDE_CODE), "r1")


@each_of(
    ("fields", "param"),
    [
        ({"tools": CODEX["tools"][3:4]}, "tools[0].type"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"tool_choice": {"type": "custom", "name": "apply_patch"}}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "list"}}, "tool_choice.name"),
        ({"context_management": [{"type": "compaction", "compact_threshold": 1000}]}, "context_management"),
    ],
)
def test_what_codex_would_rely_on_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises((Refusal, ChatError)) as caught:
        read_responses(raw(CODEX, **fields), "r1")
    error: Any = caught.value
    assert error.param == param
