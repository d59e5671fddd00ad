"""The parity of a family that sees pictures and counts positions as text does, against transformers, in one call.

Everything goes the way of a request: the host half prepares each chat, and transformers gets what its own processor
makes of the same words and pictures. docs/adding-a-model.md shows the test file that a new family makes of it.
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor

from configs.checkpoint import Checkpoint
from model.engine.messages import Generate
from model.net.multimodal import MultimodalLM
from model.registry import family_of
from shm import decode_shape_from_int64, decode_shm_name_from_int64, read_segment
from tests.model.engine.engine_harness import engine_harness_at, picture
from tests.parity.engine_check import (
    Parts,
    Reference,
    Setup,
    as_reference,
    generated,
    never_sampled,
    prepared_one_by_one,
)
from tests.parity.harness import Film, Sample, load_hf, load_ours
from tests.parity.rounding import CHUNKS, assert_logits
from tests.parity.theirs import transformers
from tokenization.placeholders import plain_positions

QUESTION = "what is in this image?"
MEMBERS: dict[str, Parts] = {  # a text first, then pictures of several sizes and shapes
    "text": ["Hello, world! What is a quick brown fox?"],
    "wide": [picture(150, 90, 1), QUESTION],
    "small": [picture(61, 63, 2), "red, green or blue?"],
    "high": [picture(60, 400, 3), QUESTION],
}
# For a family that takes several in a prompt.
THREE: Parts = [picture(60, 170, 2), "red", picture(90, 60, 3), picture(200, 120, 4), QUESTION]
MOST_STEPS = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Theirs:
    """transformers' half of a checkpoint: the network and the processor, both from its files."""

    model: Any
    processor: Any

    @classmethod
    def at(cls, path: Path) -> "Theirs":
        model = load_hf(path)
        model.generation_config.eos_token_id = None  # as many tokens as are asked for, whatever they are
        return cls(model=model, processor=transformers.AutoProcessor.from_pretrained(str(path)))

    def inputs(self, parts: Parts) -> tuple[Tensor, dict[str, Tensor]]:
        """int64 [n] ids of one chat, and what else the network takes for it."""
        content = [
            {"type": "text", "text": part} if isinstance(part, str) else {"type": "image", "image": part}
            for part in parts
        ]
        out = self.processor.apply_chat_template(
            [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=True, return_dict=True,
            return_tensors="pt",
        )  # fmt: skip
        taken = inspect.signature(self.model.forward).parameters.keys() - {"input_ids", "attention_mask"}
        return out["input_ids"][0], {name: value for name, value in out.items() if name in taken}


@torch.inference_mode()
def setup_at(path: Path, root: Path, members: Mapping[str, Parts]) -> Setup:
    """Compare ids, positions and logits of each member alone, in chunks; what transformers generates is the reference.

    root: of shared memory. The setup goes to `submit_all` of engine_check.py, for mixed batches.
    """
    theirs, ours = Theirs.at(path), load_ours(path)
    banned = never_sampled(ours)
    references: dict[str, Reference] = {}
    with engine_harness_at(path, root) as harness:
        for name, generate in prepared_one_by_one(harness, members):
            ids, media = theirs.inputs(members[name])
            sample = sample_of(path, generate, harness.root)
            assert sample.ids.tolist() == ids.tolist(), f"{name}: ids"
            assert np.array_equal(sample.positions, plain_positions(len(ids))[0]), f"{name}: positions"
            compare_logits(ours, theirs.model, sample, media, name)
            tokens, logits = generated(theirs.model, ids, media, banned)
            references[name] = as_reference(len(ids), tokens, logits, banned)
    assert len({tuple(reference.tokens) for reference in references.values()}) == len(members), "each tells its own"
    return Setup(path, ours, members, references)


def samples_at(path: Path) -> list[Sample]:
    """Three prompts for tests of networks: a picture behind some text, a picture first, a short text."""
    members: dict[str, Parts] = {
        "first": ["red, green or blue?", picture(150, 90, 1), QUESTION],
        "second": [picture(60, 80, 2), QUESTION],
        "third": ["one two three"],
    }
    with TemporaryDirectory() as root, engine_harness_at(path, Path(root) / "shm") as harness:
        prepared = prepared_one_by_one(harness, members)
        return [sample_of(path, generate, harness.root) for _, generate in prepared]


def sample_of(path: Path, generate: Generate, root: Path) -> Sample:
    """What the engine gets, with the words taken out of the ids and the arrays read from shared memory."""
    checkpoint, prepared = Checkpoint(path), generate.prepared
    host = family_of(checkpoint).processor(checkpoint, 1 << 30)
    ids, rows, arrays = torch.from_numpy(prepared.input_ids.copy()), [], []
    for item in prepared.media:
        places = [at for start, n in item.spans for at in range(start, start + n)]
        name, shape = prepared.input_ids[places[:2]].tolist()
        found = read_segment(root, decode_shm_name_from_int64(name), decode_shape_from_int64(shape), np.uint8)
        arrays.append(torch.from_numpy(found))
        ids[places[:2]] = host.placeholders[item.kind]
        rows += places
    return Sample(
        ids=ids,
        positions=torch.from_numpy(prepared.positions).long(),
        grids=tuple(item.grid for item in prepared.media),
        pixels=tuple(arrays),
        pads=torch.tensor(rows, dtype=torch.int64),
        films=tuple(Film(grid=item.grid) if item.kind == "video" else None for item in prepared.media),
    )


def compare_logits(ours: MultimodalLM, hf: Any, sample: Sample, media: Mapping[str, Tensor], what: str) -> None:
    """Every position, whole and in chunks, against transformers'. In chunks of one token where they are few."""
    expected = hf(input_ids=sample.ids[None], use_cache=False, **media).logits[0].float()
    assert expected.std() > 0.1, f"{what}: logits that tell nothing"
    assert_logits(ours, sample, expected, CHUNKS if len(sample.ids) < MOST_STEPS else (None, 7, 16))
