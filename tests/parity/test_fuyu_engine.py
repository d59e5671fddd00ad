"""Greedy tokens of mixed batches with pictures in rows against transformers' generate.

That other names of tensors give equal bits stands in test_fuyu_network.py.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from model.engine.messages import Generate
from tests.model.engine.engine_harness import EngineHarness, engine_at, engine_harness_at, picture
from tests.parity.engine_check import (
    MARGIN,
    N,
    Parts,
    Reference,
    Setup,
    as_reference,
    generated,
    n_media,
    never_sampled,
    prepared_one_by_one,
    submit_all,
)
from tests.parity.fuyu_reference import load_processor, their_prompt
from tests.parity.harness import load_hf, load_ours
from tests.tiny.fuyu import write_fuyu

pytestmark = pytest.mark.network

MEMBERS: dict[str, Parts] = {
    "text": ["Hello, world! What is a quick brown fox?\n"],
    "small": [picture(31, 29, 1), "what is in this image?\n"],
    "wide": [picture(400, 50, 2), "describe the picture\n"],
    "high": ["one two ", picture(61, 350, 3), "three\n"],  # it goes first wherever it stands
    "large": [picture(420, 300, 4), "red green blue\n"],
    "short": ["a\n"],
    "alone": [picture(90, 90, 5), "1\n"],
}
N_MEDIA = {name: n_media(parts) for name, parts in MEMBERS.items() if n_media(parts)}


@torch.inference_mode()
def reference_of(hf: Any, processor: Any, parts: Parts, generate: Generate, banned: list[int]) -> Reference:
    """transformers, alone with this one prompt: its own ids and pixels, but of a prompt without a picture."""
    words = "".join(part for part in parts if isinstance(part, str))
    images = [part for part in parts if isinstance(part, Image.Image)]
    ids, media = torch.from_numpy(generate.prepared.input_ids.copy()), {}
    if images:
        found, patches = their_prompt(processor, words, images[0])
        places = [i for item in generate.prepared.media for start, n in item.spans for i in range(start, start + n)]
        ids[places[:2]] = hf.config.image_token_id  # the words
        assert ids.tolist() == found
        media = {"pixel_values": patches[None]}
    return as_reference(len(ids), *generated(hf, ids, media, banned), banned)


def references_of(path: Path, root: Path, members: Mapping[str, Parts]) -> dict[str, Reference]:
    """What transformers answers to each member alone; from the files of `path`."""
    hf, processor = load_hf(path), load_processor(path)
    hf.generation_config.eos_token_id = None  # all N tokens, whatever they are
    banned = never_sampled(load_ours(path))
    with engine_harness_at(path, root) as harness:
        return {
            name: reference_of(hf, processor, members[name], generate, banned)
            for name, generate in prepared_one_by_one(harness, members)
        }


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    path = write_fuyu(tmp_path_factory.mktemp("tiny"))
    references = references_of(path, tmp_path_factory.mktemp("shm") / "root", MEMBERS)
    yield Setup(path, load_ours(path), MEMBERS, references)


@pytest.fixture
def harness(setup: Setup, tmp_path: Path) -> Iterator[EngineHarness]:
    with engine_harness_at(setup.path, tmp_path / "root") as found:
        yield found


def test_the_reference_is_sure_of_itself(setup: Setup) -> None:
    margins = torch.cat([reference.margins for reference in setup.references.values()])
    assert (margins > MARGIN).float().mean() >= 0.9
    assert all(len(set(reference.tokens)) > 2 for reference in setup.references.values())


@pytest.mark.parametrize(("tokens", "block_size"), [(7, 4), (2048, 16)])
def test_chunks(setup: Setup, harness: EngineHarness, tokens: int, block_size: int) -> None:
    submit_all(setup, harness, engine_at(setup.model, harness.root, tokens=tokens, block_size=block_size))
    assert {name: len(names) for name, names in harness.read.items()} == N_MEDIA


def test_staggered(setup: Setup, harness: EngineHarness) -> None:
    submit_all(setup, harness, engine_at(setup.model, harness.root, tokens=64, seqs=3), every=3)


def test_preempted_while_decoding(setup: Setup, harness: EngineHarness) -> None:
    blocks = sum(-(-n // 4) for n in setup.lengths.values()) + 3  # all prompts fit, their answers do not
    engine = engine_at(
        setup.model, harness.root, tokens=2048, block_size=4, kv_tokens=4 * blocks, seqs=len(MEMBERS),
        max_model_len=max(setup.lengths.values()) + N, prefix_cache="off",
    )  # fmt: skip
    longest_first = sorted(MEMBERS, key=lambda name: -setup.lengths[name])  # no large one waits and makes room
    submit_all(setup, harness, engine, names=longest_first)
    assert engine.stats.preemptions > 0
    assert all(len(names) == 1 for names in harness.read.values())  # nothing was read a second time
