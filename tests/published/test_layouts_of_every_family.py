"""A directory of every family as others write it: sharded `.bin` files, and what transformers 5 saves of it.

Each gives the same ids, arrays, positions, encoders and logits. How published directories differ more is told by
test_corpus_of_layouts.py, and by the tests beside this one that take their families from tests/tiny/families.py.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from configs.checkpoint import Checkpoint
from configs.serve import MediaConfig
from model.registry import families, family_of
from tests.e2e.audio_chats import IMAGE, SILENT, SOUND
from tests.parity.harness import OurRun, load_hf, load_ours, make_sample
from tests.parity.theirs import transformers
from tests.published.edits import edit_json
from tests.tiny.families import NAMES, WRITERS
from tokenization.chat.dialects import chat_from_native
from tokenization.chat.parts import Kind
from tokenization.media.source import fetch_source
from tokenization.processor import StageClock

pytestmark = pytest.mark.network

LIMITS = MediaConfig(max_pixels=100_352)
MEDIA: dict[Kind, dict[str, Any]] = {"image": IMAGE, "video": SILENT, "audio": SOUND}
UNKNOWN = {"qwen_vl"}  # to transformers: its class came with its checkpoints
PARTS = {  # processor_config.json's section: the class that reads the old file, and the key by which it is there
    "image_processor": ("AutoImageProcessor", "image_processor_type"),
    "feature_extractor": ("AutoFeatureExtractor", "feature_extractor_type"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What we make of a directory: of one chat for each medium its ids, positions, array and embeddings."""

    ids: list[list[int]]
    positions: list[list[list[int]]]
    arrays: list[np.ndarray]
    embeddings: list[Tensor]
    logits: Tensor  # of a text


def seen(path: Path) -> Seen:
    checkpoint, clock = Checkpoint(path), StageClock()
    host, model = family_of(checkpoint).host(checkpoint, LIMITS.max_pixels), load_ours(path)
    ids, positions, arrays, embeddings = [], [], [], []
    for kind in sorted(host.modalities):
        chat = chat_from_native([MEDIA[kind], {"text": "What is it?"}])
        source = fetch_source(chat.media[0], LIMITS)
        measure = host.measure(source, LIMITS)
        layout = host.expand(host.render(host.fit(chat)), [measure])
        array = host.load(source, measure, LIMITS, clock)
        ids.append(layout.input_ids.tolist())
        positions.append(host.positions(layout, [measure])[0].tolist())
        arrays.append(array)
        embeddings.append(model.encode(kind, [torch.from_numpy(array)], [measure.grid])[0])
    logits = OurRun(model).whole(make_sample(path, [12]))
    return Seen(ids=ids, positions=positions, arrays=arrays, embeddings=embeddings, logits=logits)


def as_bins(path: Path) -> None:
    """The weights in two of torch's own files, and their index."""
    file = path / "model.safetensors"
    tensors = load_file(file)
    shards = {key: f"pytorch_model-{1 + i % 2:05d}-of-00002.bin" for i, key in enumerate(tensors)}
    for shard in sorted(set(shards.values())):
        torch.save({key: tensors[key].clone() for key in tensors if shards[key] == shard}, path / shard)
    (path / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": shards}))
    file.unlink()


def as_transformers_saves_it(path: Path) -> None:
    """Its names of tensors, its config.json, its tokenizer's files, sections of one file for what prepares media."""
    hf, tokenizer = load_hf(path), transformers.AutoTokenizer.from_pretrained(str(path))
    old = json.loads((path / "preprocessor_config.json").read_text())
    sections = {
        part: getattr(transformers, kind).from_pretrained(str(path)).to_dict()
        for part, (kind, key) in PARTS.items()
        if key in old
    }
    assert sections, "nothing prepares its media"
    template = path / "chat_template.json"
    written = json.loads(template.read_text())["chat_template"] if template.is_file() else None
    for file in ("model.safetensors", "config.json", "tokenizer.json", "preprocessor_config.json"):
        (path / file).unlink()
    template.unlink(missing_ok=True)
    hf.save_pretrained(path)
    tokenizer.save_pretrained(path)
    if written is not None:
        (path / "chat_template.jinja").write_text(written)
    edit_json(path, lambda values: values.update(json.loads(json.dumps(sections))), "processor_config.json")


@pytest.mark.parametrize("name", NAMES)
def test_another_layout_is_the_same_model(name: str, tmp_path: Path) -> None:
    path = WRITERS[name](tmp_path / "original")
    before = seen(path)
    for write in (as_bins, as_transformers_saves_it):
        if write is as_transformers_saves_it and name in UNKNOWN:
            (own,) = (found for family, found in families() if family.name == name)
            assert not any(hasattr(transformers, architecture) for architecture in own)
            continue
        copy = Path(shutil.copytree(path, tmp_path / write.__name__))
        write(copy)
        assert_same(before, seen(copy))


def assert_same(before: Seen, after: Seen) -> None:
    assert after.ids == before.ids and after.positions == before.positions
    for ours, theirs in zip(before.arrays, after.arrays, strict=True):
        assert np.array_equal(ours, theirs)
    for mine, other in zip(before.embeddings, after.embeddings, strict=True):
        assert torch.equal(mine, other)
    assert torch.equal(before.logits, after.logits) and before.logits.std() > 0
