"""Greedy tokens of mixed batches of LLaVA-1.5 against transformers' generate."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from PIL import Image

from tests.model.engine.engine_harness import EngineHarness, engine_at, engine_harness_at, picture
from tests.parity.engine_check import (
    MARGIN,
    SAMPLING,
    N,
    Parts,
    Setup,
    as_reference,
    generated,
    n_media,
    never_sampled,
    prepared_one_by_one,
    submit_all,
)
from tests.parity.harness import load_hf, load_ours
from tests.parity.theirs import transformers
from tests.tiny.llava import write_llava

pytestmark = pytest.mark.network

MEMBERS: dict[str, Parts] = {
    "text": ["Hello, world! What is a quick brown fox?"],
    "image": [picture(90, 60, 1), "what is in this image?"],
    "last": ["the ", picture(56, 56, 2)],
    "images": [picture(300, 40, 3), "one", picture(20, 20, 4), picture(57, 130, 5), "what is it?"],
    "twelve": [part for i in range(12) for part in (f"{i + 1}", picture(40 + 9 * i, 70, 10 + i))],
    "tall": [picture(30, 900, 6), "answers"],
}


@torch.inference_mode()
def media_of(path: Path, parts: Parts) -> dict[str, Any]:
    images = [part for part in parts if isinstance(part, Image.Image)]
    if not images:
        return {}
    return {
        "pixel_values": transformers.LlavaImageProcessorPil.from_pretrained(path)(images, return_tensors="pt")[
            "pixel_values"
        ]
    }


def setup_of(path: Path, root: Path, names: Sequence[str] = tuple(MEMBERS)) -> Setup:
    """What transformers answers to each of these alone, from the files of `path`."""
    hf = load_hf(path)
    hf.generation_config.eos_token_id = None  # all N tokens, whatever they are
    found = Setup(path, load_ours(path), {name: MEMBERS[name] for name in names}, {})
    banned = never_sampled(found.model)
    with engine_harness_at(path, root) as harness:
        for name, generate in prepared_one_by_one(harness, found.members):
            ids = torch.from_numpy(generate.prepared.input_ids.copy())
            ids[ids < 0] = found.model.placeholder_ids["image"]
            answer = generated(hf, ids, media_of(path, MEMBERS[name]), banned)
            found.references[name] = as_reference(len(ids), *answer, banned)
    return found


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Setup:
    return setup_of(write_llava(tmp_path_factory.mktemp("tiny")), tmp_path_factory.mktemp("shm") / "root")


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
    expected = {name: n_media(parts) for name, parts in setup.members.items() if n_media(parts)}
    assert {name: len(names) for name, names in harness.read.items()} == expected


def test_staggered(setup: Setup, harness: EngineHarness) -> None:
    submit_all(setup, harness, engine_at(setup.model, harness.root, tokens=64, seqs=3), every=3)


def test_preempted_while_decoding(setup: Setup, harness: EngineHarness) -> None:
    blocks = sum(-(-n // 4) for n in setup.lengths.values()) + 3  # all prompts fit, their answers do not
    engine = engine_at(
        setup.model, harness.root, tokens=2048, block_size=4, kv_tokens=4 * blocks, seqs=len(setup.members),
        max_model_len=max(setup.lengths.values()) + N, prefix_cache="off",
    )  # fmt: skip
    longest_first = sorted(setup.members, key=lambda name: -setup.lengths[name])
    submit_all(setup, harness, engine, names=longest_first)
    assert engine.stats.preemptions > 0
    assert len(harness.read["twelve"]) == 12  # nothing was read a second time


def test_several_answers_to_one_prompt(setup: Setup, harness: EngineHarness) -> None:
    engine = engine_at(setup.model, harness.root, tokens=64)
    submit_all(setup, harness, engine, names=["images", "text"], sampling=msgspec.structs.replace(SAMPLING, n=3))
