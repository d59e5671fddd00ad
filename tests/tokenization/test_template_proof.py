"""Hostile templates in a process of their own: the proof ends in time and in memory, whatever they do."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny.qwen2_vl import write_qwen2_vl

pytestmark = pytest.mark.process

PROVE = """
import sys
from pathlib import Path
from configs.checkpoint import Checkpoint, CheckpointError
from model.registry import family_of
from tokenization import template_proof
template_proof.PROOF_SECONDS = float(sys.argv[2])
checkpoint = Checkpoint(Path(sys.argv[1]))
processor = family_of(checkpoint).processor(checkpoint, 1 << 20)
try:
    template_proof.prove_template(processor, 3 << 30, lambda ending: print(ending.code, ending.why, flush=True))
except CheckpointError as error:
    print(error)
lines = Path("/proc/self/status").read_text().splitlines()  # getrusage() counts what its parent had before exec, too
print(next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:")))
"""
LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_qwen2_vl(tmp_path_factory.mktemp("model"))


def proven(
    checkpoint: Path, template: str | None, seconds: float, *, aborts: bool = False
) -> tuple[int, list[str], int]:
    """Return code, what it said, and the most bytes that it has had; 0 of one that was ended."""
    if template is not None:
        (checkpoint / "chat_template.json").write_text(json.dumps({"chat_template": template}))
    command = [sys.executable, "-c", PROVE, str(checkpoint), str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert aborts or not done.stderr
    *said, most = [*done.stdout.splitlines(), *(["0"] if done.returncode else [])]
    return done.returncode, said, int(most)


@pytest.mark.parametrize("template", [LOOP, "{{ 3 ** (2 ** 26) }}"], ids=["a loop", "one call that holds the GIL"])
def test_time_is_bounded_by_the_kernel(checkpoint: Path, template: str) -> None:
    code, said, _ = proven(checkpoint, template, 0.5)
    assert code == -signal.SIGPROF
    assert said[0].startswith(f"{code} chat_template.json: the chat template takes more than 0.5 s of processor time")


@pytest.mark.parametrize("template", ["{{ [1] * 10 ** 10 }}", "{{ ('a' * 2 ** 28) | list }}"])
def test_memory_is_bounded(checkpoint: Path, template: str) -> None:
    code, (*_, said), most = proven(checkpoint, template, 30)
    assert (code, said.startswith("chat_template.json: the chat template takes more than 512 MiB")) == (0, True)
    assert most < 1 << 30


def test_a_vocabulary_that_ends_the_process_is_named(checkpoint: Path, tmp_path: Path) -> None:
    """Rust code that is refused memory aborts, which nothing in Python holds."""
    model = tmp_path / "model"
    shutil.copytree(checkpoint, model)
    document = json.loads((model / "tokenizer.json").read_text())
    grows = {"type": "Replace", "pattern": {"String": "e"}, "content": "e" * 100_000}
    document["normalizer"] = {"type": "Sequence", "normalizers": [grows, grows]}
    (model / "tokenizer.json").write_text(json.dumps(document))
    template = "e{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}"
    code, said, _ = proven(model, template, 30, aborts=True)
    assert code == -signal.SIGABRT
    assert f"{code} tokenizer.json: to split one short chat takes more than 512 MiB" in said


def test_a_template_without_a_place_is_refused(checkpoint: Path) -> None:
    code, (*_, said), _ = proven(checkpoint, "{{ messages[0].role }}", 30)
    assert code == 0 and said.startswith("chat_template.json: the chat template has not exactly one place for one")
