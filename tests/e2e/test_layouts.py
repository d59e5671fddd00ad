"""A server of every directory of the corpus: greedy tokens over both routes against transformers on the same files."""

from pathlib import Path
from typing import Any

import pytest
import torch

from configs.checkpoint import Checkpoint
from model.registry import family_of
from tests.e2e.running import data_url, running
from tests.e2e.test_parity import GREEDY, answers_of, check, heard_references, references_of
from tests.layouts.directories import Layout, layouts, write_layout
from tests.layouts.qwen_vl import write_qwen_vl
from tests.parity import test_fuyu_engine as in_rows
from tests.parity import test_internvl as tiled
from tests.parity import test_llava_engine as one_size
from tests.parity.engine_check import Parts, Reference
from tests.parity.golden_qwen_vl import GOLDEN, IMG, cases, processor_at
from tests.parity.pictures import MEMBERS as PICTURES
from tests.parity.pictures import THREE, setup_at
from tests.parity.pixtral_reference import let_it_load
from tests.parity.test_qwen2_engine import MEMBERS

IN_ROWS = ("text", "small", "wide", "high", "large")
SEEN = ("text", "one", "three", "image_then_video", "fast")
SQUARE = ("text", "image", "images", "last")
HEARD = {
    "qwen2_audio": ("text", "audio", "audios"),
    "qwen2_5_omni": ("text", "audios", "talkie", "image_talkie_audio", "audio_video_image"),
}

pytestmark = [pytest.mark.served, pytest.mark.process]


def expected(path: Path, root: Path) -> tuple[dict[str, Parts], dict[str, Reference]]:
    """The chats that are sent, and what transformers answers to each."""
    family = family_of(Checkpoint(path)).name
    if family == "llava":
        setup = one_size.setup_of(path, root, SQUARE)
        return dict(setup.members), setup.references
    if family in ("vip_llava", "mistral3"):
        let_it_load()
        setup = setup_at(path, root, {**PICTURES, "three": THREE})
        return dict(setup.members), setup.references
    if family == "fuyu":
        members = {name: in_rows.MEMBERS[name] for name in IN_ROWS}
        return members, in_rows.references_of(path, root, members)
    heard = HEARD.get(family)
    if heard:
        return heard_references(path, root, heard)
    return {name: MEMBERS[name] for name in SEEN}, references_of(path, root, SEEN)


@pytest.mark.filterwarnings("ignore:`rope_scaling` is deprecated:FutureWarning")  # a key that transformers 4 saved
@pytest.mark.parametrize("layout", layouts(), ids=str)
def test_a_server_answers_as_transformers(layout: Layout, tmp_path: Path, shm_root: Path) -> None:
    path = write_layout(layout, tmp_path / str(layout))
    members, references = expected(path, tmp_path / "reference")
    root = shm_root.with_name(f"{shm_root.name}-layouts")
    with running(path, root, tmp_path / "logs", "--workers", "1", "--dtype", "float32") as server:
        answers = answers_of(server, members)
        server.assert_nothing_held()
    check(answers, references, path)


@pytest.mark.parametrize("name", ["transformers", "published"])
def test_a_server_of_tiles_answers_as_transformers(name: str, tmp_path: Path, shm_root: Path) -> None:
    """In a layout that transformers does not load, too: its reference has the same weights."""
    setup = tiled.setup_of(tiled.case_of(tmp_path, **tiled.CASES[name]), tmp_path / "reference", tiled.MEMBERS)
    root = shm_root.with_name(f"{shm_root.name}-layouts")
    with running(setup.path, root, tmp_path / "logs", "--workers", "1", "--dtype", "float32") as server:
        answers = answers_of(server, setup.members)
        server.assert_nothing_held()
    check(answers, setup.references, setup.path)


@pytest.mark.parametrize(("model", "name"), [("Qwen-VL", "image_1"), ("Qwen-VL-Chat", "chat_image")])
def test_a_server_answers_as_the_published_code(model: str, name: str, tmp_path: Path, shm_root: Path) -> None:
    """Tokens and log-probabilities of the golden continuation, wherever its best token has a clear lead."""
    path, case = write_qwen_vl(model, tmp_path / model), cases()[name]
    pictures = [{"image": data_url((GOLDEN / image).read_bytes())} for image in case.images]
    body: dict[str, Any] = {"inputs": [*pictures, {"text": "what is the image"}]}
    if model == "Qwen-VL-Chat":
        body["history"] = [{"inputs": [{"text": "hello"}], "text": "hi"}]
    asked = {**GREEDY, "max_tokens": len(case.greedy)}
    root = shm_root.with_name(f"{shm_root.name}-layouts")
    with running(path, root, tmp_path / "logs", "--workers", "1", "--dtype", "float32") as server:
        answer = server.http.post("/chat", json={**body, "parameters": asked}).json()
        server.assert_nothing_held()
    assert answer["usage"]["prompt_tokens"] == len(case.ids)
    tokenizer = processor_at(path).tokenizer
    logprobs = torch.from_numpy(case.logits).log_softmax(-1)
    steps = [i for i, token in enumerate(case.greedy) if case.sure(i) and token < IMG]
    for i in steps:
        entry = answer["logprobs"]["content"][i]
        assert bytes(entry["bytes"]) == tokenizer.token_bytes(case.greedy[i]), f"token {i}"
        assert entry["logprob"] == pytest.approx(logprobs[i, case.greedy[i]].item(), abs=1e-3)
    assert len(steps) >= 8
