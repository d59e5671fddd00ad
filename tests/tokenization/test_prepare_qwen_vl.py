"""Chats that Qwen-VL and its base model cannot read are the client's to change, wherever in them the trouble lies."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from configs.checkpoint import Checkpoint
from model.families.qwen_vl.processor import QwenVLProcessor
from model.families.qwen_vl.vocabulary import LONGEST_BLANK
from tests.tiny.qwen_vl import write_qwen_vl
from tests.tokenization.worker_harness import WorkerHarness, worker_harness_at


def harness_of(directory: Path, chat_format: str) -> Iterator[WorkerHarness]:
    checkpoint = write_qwen_vl(directory / "model", ["yes"])
    file = checkpoint / "generation_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "chat_format": chat_format}))
    with worker_harness_at(directory / "shm", QwenVLProcessor(Checkpoint(checkpoint), 1 << 20)) as harness:
        yield harness


@pytest.fixture
def chat(tmp_path: Path) -> Iterator[WorkerHarness]:
    yield from harness_of(tmp_path, "chatml")


@pytest.fixture
def base(tmp_path: Path) -> Iterator[WorkerHarness]:
    yield from harness_of(tmp_path, "raw")


def test_a_run_of_blanks_is_refused_in_history_as_in_the_question(chat: WorkerHarness) -> None:
    blanks, start = " " * LONGEST_BLANK, chat.start(1 << 20)
    for body in (
        [{"text": blanks}],
        {"history": [{"inputs": [{"text": blanks}], "text": "x"}], "inputs": [{"text": "x"}]},
        {"history": [{"inputs": [{"text": "x"}], "text": blanks}], "inputs": [{"text": "x"}]},
        {"system": blanks, "inputs": [{"text": "x"}]},
    ):
        assert "blank characters in a row" in chat.refused(body, start).message


def test_a_prompt_without_a_token_is_refused(base: WorkerHarness) -> None:
    assert base.refused([{"text": ""}]).message == "the prompt has no tokens; the model needs at least one to continue"
    assert len(base.run([{"text": "a"}]).input_ids) == 1
