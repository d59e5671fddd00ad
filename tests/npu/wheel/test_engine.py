"""What the engine does besides: preemption, several answers to one prompt; the same on the stub's NPU and on ring 0."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from configs.checkpoint import Checkpoint
from model.registry import family_of
from tests.model.engine.engine_harness import Parts, picture
from tests.npu.wheel.families import DRAWN, GREEDY
from tests.npu.wheel.launches import FORM
from tests.npu.wheel.twins import BLOCK, Request, Said, assert_twins, load_on, run_on
from tests.tiny.qwen2_vl import write_qwen2_vl

pytestmark = pytest.mark.npu

LONG: Parts = ["a long prompt " * 4, picture(140, 112, 5), "and what is in it?"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_qwen2_vl(tmp_path_factory.mktemp("tiny"), tied=False)


def test_answers_that_preempt_each_other(checkpoint: Path, npu: torch.device, tmp_path: Path) -> None:
    sampling = msgspec.structs.replace(GREEDY, max_tokens=60)
    requests = {name: Request(parts=LONG, sampling=sampling) for name in ("a", "b", "c")}
    said = _both(checkpoint, npu, tmp_path, requests, kv_tokens=3 * BLOCK, max_model_len=2 * BLOCK)
    assert said[0].preemptions > 0
    assert_twins(*said)


def test_several_answers_to_one_prompt(checkpoint: Path, npu: torch.device, tmp_path: Path) -> None:
    """They share the prompt's blocks until they write."""
    sampling = msgspec.structs.replace(DRAWN, n=3, max_tokens=6)
    said = _both(checkpoint, npu, tmp_path, {"a": Request(parts=LONG, sampling=sampling)})
    assert len(said[0].events["a"]) == 3 * 6
    assert_twins(*said)


def test_answers_in_a_form(checkpoint: Path, npu: torch.device, tmp_path: Path) -> None:
    """Beside one that is free."""
    requests = {
        "a": Request(parts=LONG, sampling=msgspec.structs.replace(DRAWN, n=2), grammar=FORM),
        "free": Request(parts=LONG, sampling=GREEDY), "b": Request(parts=LONG, sampling=GREEDY, grammar=FORM),
    }  # fmt: skip
    said = _both(checkpoint, npu, tmp_path, requests)
    assert_twins(*said)
    found = Checkpoint(checkpoint)
    tokenizer = family_of(found).processor(found, 1 << 20).tokenizer
    for name in ("a", "b"):
        text = b"".join(tokenizer.token_bytes(event.token.id) for event in said[0].events[name] if not event.index)
        assert text and text.isalpha() and text.islower()


def _both(checkpoint: Path, npu: torch.device, root: Path, requests: dict[str, Request], **limits: Any) -> list[Said]:
    return [
        run_on(load_on(checkpoint, device, torch.bfloat16), checkpoint, root / device.type, requests, **limits)
        for device in (npu, torch.device("cpu"))
    ]
