"""Absurd values in every key that a family reads: each start works or is refused in a sentence, in bounded memory."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from configs.checkpoint import MOST_FILE_BYTES, Checkpoint, CheckpointError
from model.ops.load import load_ops
from model.registry import family_of
from model.weights import Weights
from tests.tables import entries
from tests.tiny.families import NAMES, WRITERS
from tests.tiny.qwen2_vl import write_json

pytestmark = pytest.mark.network

SOME = 2  # starts of a family in `make test`


def wrong_in(count: int, root: Path, *names: str) -> list[dict[str, Any]]:
    good = [str(WRITERS[name](root / name)) for name in names]
    command = [sys.executable, "-m", "tests.published.absurd_starts", "1", str(count), *good]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stderr[-2000:]
    print("\n".join(line for line in done.stderr.splitlines() if " starts of " in line))
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.process
def test_some_absurd_values(tmp_path: Path) -> None:
    assert wrong_in(SOME, tmp_path, *NAMES) == []


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", NAMES)
def test_all_absurd_values(name: str, tmp_path: Path) -> None:
    assert wrong_in(0, tmp_path, name) == []


@pytest.mark.parametrize("layers", [-1, 0, 3, 1000, 10**12, 10**400])
def test_layers_that_the_weights_do_not_hold_are_refused_before_any_is_built(tmp_path: Path, layers: int) -> None:
    """10**12 grew the engine for as long as there was memory."""
    path = WRITERS["llava"](tmp_path)
    config = json.loads((path / "config.json").read_text())
    config["text_config"]["num_hidden_layers"] = layers
    write_json(path / "config.json", config)
    checkpoint = Checkpoint(path)
    family, ops = family_of(checkpoint), load_ops(torch.device("cpu"), torch.float32)
    weights = Weights(checkpoint, family.renames, ops.dtype, ops.device)
    with pytest.raises(CheckpointError, match="num_hidden_layers|asks for .* layers model.layers.N"):
        family.build(checkpoint, weights, ops)
    assert weights.has("model.layers.0.input_layernorm.weight"), "nothing of the decoder was taken"


CONTENTS = {
    "open": (b"[" * 100_000, "lie more than 64 deep"),
    "nested": (b'{"a":' * 900 + b"1" + b"}" * 900, "lie more than 64 deep"),
    "digits": (b'{"a": 1' + b"0" * 5000 + b"}", "not valid JSON"),
    "bytes": (b"\xff\xfe", "not UTF-8 at byte 0"),
    "list": (b"[]", "not a JSON object"),
    "large": (b" " * (MOST_FILE_BYTES + 1), "more than 64 MiB"),
}


def test_files_that_are_no_small_object_are_sentences(tmp_path: Path) -> None:
    with entries() as entry:
        for file in ("config.json", "tokenizer_config.json", "generation_config.json"):
            for name, (content, said) in CONTENTS.items():
                (tmp_path / "config.json").write_text("{}")
                checkpoint = Checkpoint(tmp_path)
                (tmp_path / file).write_bytes(content)
                with entry(f"{file} {name}"):
                    with pytest.raises(CheckpointError, match=said) as caught:
                        checkpoint.file(file)
                    assert str(caught.value).startswith(f"{file}: ")


def test_an_error_is_one_short_line_whatever_it_quotes() -> None:
    said = str(CheckpointError("config.json: " + "x\n\x1b[2J" * 10**6 + " is no name"))
    assert len(said) < 1100 and said.isprintable() and said.endswith("is no name")
