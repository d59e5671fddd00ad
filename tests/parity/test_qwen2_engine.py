"""Greedy tokens of a mixed batch against transformers' generate, however the batch is cut, staggered or preempted."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from model.engine.engine import Engine
from model.engine.messages import Generate, SamplingParams
from model.net.multimodal import MultimodalLM
from tests.engine.host import Host, engine_at, host_at, picture
from tests.parity.harness import load_hf, load_ours
from tests.tiny import Layout, write_qwen2_vl

N = 16
MARGIN = 0.01
SAMPLING = SamplingParams(max_tokens=N, temperature=0.0, seed=0, logprobs=True, top_logprobs=3)

MEMBERS: dict[str, list[str | Image.Image]] = {
    "text": ["Hello, world! What is a quick brown fox?"],
    "one": [picture(150, 90, 1), "what is in this image?"],
    "three": ["red", picture(60, 170, 2), "green", picture(90, 60, 3), picture(200, 120, 4), "describe the pictures"],
    "twenty": [part for i in range(20) for part in (f"{i + 1}", picture(40 + i, 75 - i, 10 + i))] + ["one two three"],
}


@dataclass(frozen=True)
class Reference:
    tokens: list[int]
    logits: torch.Tensor  # float32 [N, vocab], raw

    @property
    def margins(self) -> torch.Tensor:
        top = self.logits.topk(2).values
        return top[:, 0] - top[:, 1]


@dataclass(frozen=True)
class Setup:
    path: Path
    model: MultimodalLM
    references: dict[str, Reference]
    lengths: dict[str, int]


def pixels_of(path: Path, parts: Sequence[str | Image.Image]) -> dict[str, torch.Tensor]:
    """What transformers' own processor makes of the same pictures."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    images = [part for part in parts if not isinstance(part, str)]
    if not images:
        return {}
    found = Qwen2VLImageProcessorPil.from_pretrained(path)(images, return_tensors="pt")
    return {"pixel_values": found["pixel_values"], "image_grid_thw": found["image_grid_thw"]}


@torch.inference_mode()
def reference_of(hf: Any, path: Path, generate: Generate, parts: Sequence[str | Image.Image]) -> Reference:
    """transformers, alone with this one prompt; positions are its own."""
    pad = hf.config.image_token_id
    ids = torch.from_numpy(generate.input_ids.copy())[None]
    ids[ids < 0] = pad
    out = hf.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), mm_token_type_ids=(ids == pad).long(),
        **pixels_of(path, parts), max_new_tokens=N, do_sample=False, return_dict_in_generate=True, output_logits=True,
    )  # fmt: skip
    return Reference(out.sequences[0, -N:].tolist(), torch.cat(out.logits).float())


@pytest.fixture(scope="module", params=["hub", "v5"])
def setup(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    layout: Layout = request.param
    path = write_qwen2_vl(tmp_path_factory.mktemp("tiny"), layout=layout)
    hf = load_hf(path)
    hf.generation_config.eos_token_id = None  # all N tokens, whatever they are
    references, lengths = {}, {}
    with host_at(path, tmp_path_factory.mktemp("shm") / "root") as host:
        for name, parts in MEMBERS.items():
            generate = host.prepare(name, parts)
            lengths[name] = len(generate.input_ids)
            references[name] = reference_of(hf, path, generate, parts)
            host.pool.retire(name)
            host.pool.settle(name)
    yield Setup(path, load_ours(path), references, lengths)


@pytest.fixture
def host(setup: Setup, tmp_path: Path) -> Iterator[Host]:
    with host_at(setup.path, tmp_path / "root") as found:
        yield found


def check(setup: Setup, host: Host, engine: Engine) -> None:
    """Tokens equal and log-probabilities close for every member, for as long as the reference is sure of itself."""
    host.assert_clean(engine)
    for name, reference in setup.references.items():
        events = host.events[name]
        assert [event.finish for event in events] == [None] * (N - 1) + ["length"], name
        assert host.finished[name].reason == "done"
        logprobs = reference.logits.log_softmax(-1)
        for i, event in enumerate(events):
            if reference.margins[i] <= MARGIN and event.token.id != reference.tokens[i]:
                break  # either of the two was right; from here on the histories differ
            assert event.token.id == reference.tokens[i], f"{name}: token {i}"
            assert event.token.logprob == pytest.approx(logprobs[i, event.token.id].item(), abs=1e-3)
            assert len(event.token.top) == 3
            for token, value in event.token.top:
                assert value == pytest.approx(logprobs[i, token].item(), abs=1e-3)


def submit_all(setup: Setup, host: Host, engine: Engine, every: int = 0, names: Sequence[str] = tuple(MEMBERS)) -> None:
    """All members, text first; with `every` > 0 that many steps lie between two arrivals."""
    for name in names:
        host.submit(engine, host.prepare(name, MEMBERS[name], SAMPLING))
        for _ in range(every):
            host.book(engine.step())
    host.run(engine)
    check(setup, host, engine)


def test_the_reference_is_sure_of_itself(setup: Setup) -> None:
    margins = torch.cat([reference.margins for reference in setup.references.values()])
    assert (margins > MARGIN).float().mean() >= 0.9
    assert all(len(set(reference.tokens)) > 2 for reference in setup.references.values())


@pytest.mark.parametrize("block_size", [4, 16])
@pytest.mark.parametrize("tokens", [7, 64, 2048])
def test_chunks(setup: Setup, host: Host, tokens: int, block_size: int) -> None:
    submit_all(setup, host, engine_at(setup.model, host.root, tokens=tokens, block_size=block_size))
    assert {name: len(names) for name, names in host.read.items()} == {"one": 1, "three": 3, "twenty": 20}


@pytest.mark.parametrize("tokens", [7, 64])
@pytest.mark.parametrize("every", [1, 5])
def test_staggered(setup: Setup, host: Host, every: int, tokens: int) -> None:
    submit_all(setup, host, engine_at(setup.model, host.root, tokens=tokens, seqs=3), every)


@pytest.mark.parametrize(("every", "spare"), [(0, 3), (1, 6)])
def test_preempted_while_decoding(setup: Setup, host: Host, every: int, spare: int) -> None:
    blocks = sum(-(-n // 4) for n in setup.lengths.values()) + spare  # all prompts fit, their answers do not
    longest = max(setup.lengths.values()) + N
    engine = engine_at(setup.model, host.root, tokens=2048, block_size=4, kv_tokens=4 * blocks, max_model_len=longest)
    submit_all(setup, host, engine, every)
    assert engine.stats.preemptions > 0
    assert len(host.read["twenty"]) == 20  # nothing was read a second time


@pytest.mark.parametrize("tokens", [7, 16])
def test_preempted_inside_the_prompt(setup: Setup, host: Host, tokens: int) -> None:
    blocks = -(-setup.lengths["twenty"] // 4) - (-setup.lengths["three"] // 4) + 1
    longest = setup.lengths["twenty"] + N
    engine = engine_at(setup.model, host.root, tokens=tokens, block_size=4, kv_tokens=4 * blocks, max_model_len=longest)
    submit_all(setup, host, engine, names=("twenty", "three", "one", "text"))
    assert engine.stats.preemptions > 0
    assert len(host.read["three"]) == 3


def test_preempted_in_a_cache_for_one(setup: Setup, host: Host) -> None:
    longest = max(setup.lengths.values()) + N
    engine = engine_at(setup.model, host.root, tokens=32, block_size=4, kv_tokens=longest + 4, max_model_len=longest)
    submit_all(setup, host, engine)


def test_one_at_a_time(setup: Setup, host: Host) -> None:
    submit_all(setup, host, engine_at(setup.model, host.root, seqs=1))
