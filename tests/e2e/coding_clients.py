"""One request each of Claude Code and Codex, with a picture, in the shape that public threads show of them.

Claude Code: POST /v1/messages?beta=true as in router-for-me/CLIProxyAPI#512; a message of the role `system` behind the
user's (anthropics/claude-code#63469, version 2.1.156), `thinking` of the type `adaptive` (seaavey/SRouter#92), and
`context_management` in each request (anthropics/claude-code#21612, decolua/9router#1468), whose edit is that of
Anthropic's page on context editing.

Codex: the twelve fields of webai-at-home/webai-at-home#214; `exec_command` of router-for-me/CLIProxyAPI#2608,
`update_plan` of lmstudio-ai/lmstudio-bug-tracker#1576, `web_search` and a `namespace` for each server of MCP
(ggml-org/llama.cpp#20156, envoyproxy/ai-gateway#2317), and `apply_patch` of the type `custom` (Wei-Shaw/sub2api#3390).

Long words are cut; no field is.
"""

from typing import Any

from tests.e2e.running import data_url, picture

PNG = data_url(picture(64, 48))
_SCHEMA = "https://json-schema.org/draft/2020-12/schema"
_CACHED = {"cache_control": {"type": "ephemeral"}}


def _claude_tool(name: str, needed: list[str], **properties: Any) -> dict[str, Any]:
    schema = {
        "$schema": _SCHEMA, "type": "object", "properties": properties, "required": needed,
        "additionalProperties": False,
    }  # fmt: skip
    return {"name": name, "description": f"What {name} is for.", "input_schema": schema}


_LINES = {"type": "integer", "minimum": 0, "maximum": 9007199254740991}
CLAUDE_CODE_PATH = "/v1/messages?beta=true"
CLAUDE_CODE_HEADERS = {
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27",
    "user-agent": "claude-cli/2.1.156 (external, cli)",
    "x-app": "cli",
}
CLAUDE_CODE: dict[str, Any] = {
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "<system-reminder>\nThe date is 2026-06-01.\n</system-reminder>\n"},
                {"type": "text", "text": "[Image #1] What is wrong with this page?"},
                {"type": "image", "source": {
                    "type": "base64", "media_type": "image/png", "data": PNG.partition(",")[2]}},
                {"type": "text", "text": "[Image: source: /tmp/page.png]", **_CACHED},
            ],
        },
        {"role": "system", "content": "# MCP Server Instructions\n\nAsk files for files."},
    ],
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.156; cc_entrypoint=cli;"},
        {"type": "text", "text": "You are Claude Code, Anthropic's official CLI for Claude.", **_CACHED},
        {"type": "text", "text": "You help users with software engineering tasks.", **_CACHED},
    ],
    "tools": [
        _claude_tool(
            "Bash", ["command"], command={"type": "string", "description": "The command to execute"},
            timeout={"type": "number", "description": "Optional timeout in milliseconds"},
            run_in_background={"type": "boolean"},
        ),
        _claude_tool("Read", ["file_path"], file_path={"type": "string"}, offset=_LINES, pages={"type": "string"}),
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
    ],
    "metadata": {"user_id": '{"device_id":"' + "0a" * 32 + '","account_uuid":"","session_id":"5b1c"}'},
    "max_tokens": 32000,
    "thinking": {"type": "adaptive"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "high"},
    "stream": True,
}  # fmt: skip


def _codex_tool(name: str, needed: list[str], **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": needed, "additionalProperties": False}
    return {
        "type": "function", "name": name, "description": f"What {name} is for.", "strict": False,
        "parameters": parameters,
    }  # fmt: skip


_STEP = {
    "type": "object", "required": ["step", "status"], "additionalProperties": False,
    "properties": {"status": {"type": "string"}, "step": {"type": "string"}},
}  # fmt: skip
CODEX_PATH = "/v1/responses"
CODEX: dict[str, Any] = {
    "instructions": "You are Codex, a coding agent.",
    "input": [
        {"type": "message", "role": "developer", "content": [
            {"type": "input_text", "text": "<permissions instructions>\nsandbox\n</permissions instructions>"}]},
        {"type": "message", "role": "user", "content": [
            {"type": "input_text", "text": "<environment_context>\n  <cwd>/work</cwd>\n</environment_context>"}]},
        {"type": "message", "role": "user", "content": [
            {"type": "input_text", "text": '<image name=[Image #1] path="/tmp/page.png">'},
            {"type": "input_image", "image_url": PNG, "detail": "high"},
            {"type": "input_text", "text": "</image>"},
            {"type": "input_text", "text": "What is wrong with this page?"}]},
    ],
    "tools": [
        _codex_tool(
            "exec_command", ["cmd"], cmd={"type": "string"}, tty={"type": "boolean"}, workdir={"type": "string"},
            yield_time_ms={"type": "number"}, prefix_rule={"type": "array", "items": {"type": "string"}},
        ),
        _codex_tool("update_plan", ["plan"], explanation={"type": "string"}, plan={"type": "array", "items": _STEP}),
        {"type": "custom", "name": "apply_patch", "description": "A FREEFORM tool.",
         "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/s"}},
        {"type": "web_search", "external_web_access": False},
        {"type": "namespace", "name": "mcp__files", "description": "Files.",
         "tools": [_codex_tool("list", [], path={"type": "string"})]},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "019a0000-0000-7000-8000-000000000000",
    "client_metadata": {"x-codex-installation-id": "6f1e"},
}  # fmt: skip
