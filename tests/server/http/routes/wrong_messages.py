"""Bodies of /v1/messages that are refused, and the parts that they are made of."""

from typing import Any

HI: list[Any] = [{"role": "user", "content": "Hi"}]
BLUE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL: dict[str, Any] = {"name": "weather", "description": "a forecast", "input_schema": CITY}


def use(number: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": number, "name": "weather", "input": {"city": "Rome"}}


def result(number: str, *content: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": number, "content": list(content), **fields}


def words(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


USER: Any = {"role": "user"}
DEEP: Any = {"a": {}}
for _ in range(40):
    DEEP = {"a": DEEP}
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"messages": None}, "messages"), ({"messages": "x"}, "messages"), ({"messages": []}, "messages"),
    ({"messages": ["x"]}, "messages[0]"), ({"messages": [{"role": 1}]}, "messages[0].role"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{**USER}]}, "messages[0].content"), ({"messages": [{**USER, "content": 1}]}, "messages[0].content"),
    ({"messages": [{**USER, "content": []}]}, "messages[0].content"),
    ({"messages": [{**USER, "content": [1]}]}, "messages[0].content[0]"),
    *(
        ({"messages": [{**USER, "content": [block]}]}, f"messages[0].content[0].{param}")
        for block, param in [
            ({}, "type"), ({"type": []}, "type"), ({"type": "document"}, "type"), ({"type": "thinking"}, "type"),
            (use("a"), "type"), ({"type": "text"}, "text"), ({"type": "image"}, "source"),
            ({"type": "image", "source": {"type": "file"}}, "source.type"),
            ({"type": "image", "source": {"type": "url", "url": ""}}, "source.url"),
            ({"type": "image", "source": {"type": "base64", "media_type": "image/bmp"}}, "source.media_type"),
            ({"type": "image", "source": {"type": "base64", "media_type": "image/png"}}, "source.data"),
            ({**BLUE, "transformations": {"a": 1}}, "transformations"),
            ({"type": "tool_result"}, "tool_use_id"), (result("a", is_error=1), "is_error"),
            ({**result("a"), "content": 1}, "content"), (result("a", {"type": "document"}), "content[0].type"),
            (result("a", {"type": "text", "text": 1}), "content[0].text"),
        ]
    ),
    *(
        ({"messages": [{"role": "assistant", "content": [block]}]}, f"messages[0].content[0].{param}")
        for block, param in [
            (BLUE, "type"), ({**use("a"), "id": None}, "id"), ({**use("a"), "name": " "}, "name"),
            ({**use("a"), "input": "{}"}, "input"), ({**use("a"), "input": DEEP}, "input"),
        ]
    ),
    ({"system": 1}, "system"), ({"system": [BLUE]}, "system[0].type"),
    ({"system": [{"type": "text"}]}, "system[0].text"),
    ({"max_tokens": None}, "max_tokens"), ({"max_tokens": "9"}, "max_tokens"), ({"max_tokens": 0}, "max_tokens"),
    ({"temperature": "x"}, "temperature"), ({"top_p": 2}, "top_p"), ({"top_k": 1.5}, "top_k"),
    ({"stop_sequences": "x"}, "stop_sequences"), ({"stop_sequences": [1]}, "stop_sequences[0]"),
    ({"stop_sequences": [""]}, "stop_sequences"), ({"stop_sequences": ["x"] * 99}, "stop_sequences"),
    ({"stream": 1}, "stream"), ({"metadata": 1}, "metadata"), ({"metadata": {"user_id": 1}}, "metadata.user_id"),
    ({"model": 1}, "model"), ({"thinking": {"type": "often"}}, "thinking.type"), ({"container": "x"}, "container"),
    ({"mcp_servers": [{}]}, "mcp_servers"), ({"context_management": []}, "context_management"),
    ({"context_management": {"edits": {}}}, "context_management.edits"),
    *(
        ({"context_management": {"edits": [edit]}}, "context_management.edits[0]")
        for edit in (1, {}, {"type": "clear_tool_uses_20250919"}, {"type": "clear_thinking_20251015"},
                     {"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": 2}},
                     {"type": "compact_20260112"})
    ),
    ({"tools": [TOOL, {"type": "web_search_20260318", "name": "web_search"}],
      "tool_choice": {"type": "tool", "name": "web_search"}}, "tool_choice.name"),
    ({"tools": [TOOL, {"type": "function", "name": "x"}]}, "tools[1].type"),
    ({"thread": {"type": "create"}}, "thread"), ({"compaction": {"type": "summarize"}}, "compaction"),
    ({"thread": {"type": "continue", "previous_message_id": "msg_1"}}, "thread"),
    ({"output_format": {"type": "json_schema", "schema": CITY}}, "output_format"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"output_config": 1}, "output_config"), ({"output_config": {"format": {}}}, "output_config.format"),
    ({"tools": 1}, "tools"), ({"tools": [1]}, "tools[0]"), ({"tools": [{**TOOL, "name": 1}]}, "tools[0].name"),
    ({"tools": [{**TOOL, "input_schema": 1}]}, "tools[0].input_schema"),
    ({"tools": [{**TOOL, "input_schema": {"type": "array"}}]}, "tools[0].input_schema.type"),
    ({"tools": [{"type": "web_search_20260318", "name": "web_search"}]}, "tools[0].type"),
    ({"tools": [{**TOOL, "description": 1}]}, "tools[0].description"), ({"tools": [TOOL, TOOL]}, "tools[1].name"),
    ({"tools": [{**TOOL, "strict": 1}]}, "tools[0].strict"),
    ({"tools": [{**TOOL, "input_examples": [{}]}]}, "tools[0].input_examples"),
    ({"tools": [{**TOOL, "defer_loading": True}]}, "tools[0].defer_loading"),
    ({"tools": [TOOL], "tool_choice": "any"}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {}}, "tool_choice.type"),
    ({"tools": [TOOL], "tool_choice": {"type": ["any"]}}, "tool_choice.type"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice.name"),
    (
        {"tools": [TOOL], "tool_choice": {"type": "any", "disable_parallel_tool_use": 1}},
        "tool_choice.disable_parallel_tool_use",
    ),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
]  # fmt: skip
