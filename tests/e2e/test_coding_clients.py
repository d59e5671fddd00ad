"""Claude Code's and Codex's requests, as tests/e2e/coding_clients.py has them, answered by a server of Qwen3-VL."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.coding_clients import (
    CLAUDE_CODE,
    CLAUDE_CODE_HEADERS,
    CLAUDE_CODE_PATH,
    CODEX,
    CODEX_PATH,
)
from tests.e2e.running import RunningServer, running
from tests.layouts.templates import QWEN3_VL
from tests.tiny.qwen3_vl import write_qwen3_vl

pytestmark = [pytest.mark.process, pytest.mark.long]  # for its server; make test reads the same requests

LEFT_OUT = "x-pixelferry-tools-left-out"


@pytest.fixture(scope="module")
def qwen3(shm_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("coding")
    model = write_qwen3_vl(folder / "tiny", tied=False)
    (model / "chat_template.json").write_text(json.dumps({"chat_template": QWEN3_VL}))
    with running(model, shm_root.with_name(f"{shm_root.name}-coding"), folder / "logs", "--workers", "1") as server:
        yield server


def test_claude_code_is_answered(qwen3: RunningServer) -> None:
    body = {**CLAUDE_CODE, "max_tokens": 24}  # random weights would go on
    answer = qwen3.http.post(CLAUDE_CODE_PATH, json=body, headers=CLAUDE_CODE_HEADERS)
    assert answer.status_code == 200, answer.text
    assert answer.headers[LEFT_OUT] == "web_search_20250305 web_search"
    assert "event: message_start" in answer.text and "event: message_stop" in answer.text
    counted = {key: value for key, value in body.items() if key not in ("max_tokens", "stream", "metadata")}
    count = qwen3.http.post("/v1/messages/count_tokens?beta=true", json=counted, headers=CLAUDE_CODE_HEADERS)
    assert count.json()["input_tokens"] > 100 and LEFT_OUT in count.headers


def test_codex_is_answered(qwen3: RunningServer) -> None:
    answer = qwen3.http.post(CODEX_PATH, json={**CODEX, "max_output_tokens": 24})
    assert answer.status_code == 200, answer.text
    assert answer.headers[LEFT_OUT] == "custom apply_patch, web_search, namespace mcp__files"
    assert "event: response.completed" in answer.text or "event: response.incomplete" in answer.text
    plain = qwen3.http.post(CODEX_PATH, json={**CODEX, "stream": False, "max_output_tokens": 4})
    assert plain.json()["usage"]["input_tokens_details"]["image_tokens"] > 0
    assert [tool["name"] for tool in plain.json()["tools"]] == ["exec_command", "update_plan"]


def test_an_answer_without_anything_left_out_says_nothing(qwen3: RunningServer) -> None:
    answer = qwen3.http.post(CODEX_PATH, json={**CODEX, "tools": CODEX["tools"][:2], "max_output_tokens": 4})
    assert answer.status_code == 200 and LEFT_OUT not in answer.headers
