"""The memory profile: what every family runs for it, what samplers take at most, and the table that shows it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from configs.checkpoint import Checkpoint
from configs.serve import MIB, EngineConfig, MediaConfig
from model.engine.kv_blocks import CacheSize
from model.engine.messages import LargestItem, SamplingParams
from model.engine.profile import (
    Profile,
    full_steps,
    memory_rows,
    profile_on_device,
)
from model.engine.sampling.logits_processors import BITS
from model.engine.sampling.rows import Row
from model.engine.sampling.sampler import sampling_bytes
from model.family import BOUNDS
from model.net.multimodal import MultimodalLM
from model.ops.load import load_ops
from model.registry import family_of
from tests.model.card import Card, install_card
from tests.model.engine.sampling_rows import sample
from tests.model.live_bytes import LiveBytes
from tests.parity.harness import load_over
from tests.tables import each_of
from tests.tiny.qwen2_5_omni import write_qwen2_5_omni
from tests.tiny.qwen2_5_vl import write_qwen2_5_vl
from tests.tiny.qwen2_audio import write_qwen2_audio
from tests.tiny.qwen2_vl import write_qwen2_vl
from tests.tiny.qwen_vl import write_qwen_vl

pytestmark = pytest.mark.network

CONFIG = EngineConfig(max_seqs=6, max_batched_tokens=512, block_size=16, kv_cache_bytes=64 << 20)
LENGTH = 2048


def write_fixed_size(path: Path) -> Path:
    return write_qwen_vl(path, ["a cat"])


def on_meta(path: Path) -> MultimodalLM:
    return load_over(load_ops(torch.device("meta"), torch.float32), path)


def largest(path: Path, limits: MediaConfig) -> tuple[LargestItem, ...]:
    found = Checkpoint(path)
    prompt = family_of(found).processor(found, limits.max_pixels)
    return tuple(
        LargestItem(kind=item.kind, grid=item.grid, n_tokens=item.n_tokens, fixed=prompt.modalities[item.kind].fixed)
        for item in prompt.largest(limits, LENGTH)
    )


def really(run: Any) -> int:
    """The peak of what torch's allocator hands out on the CPU while `run` runs, by its own profiler."""
    run()  # what is made once and kept
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as traced:
        kept = run()
    del kept
    events = [e for e in traced.profiler.kineto_results.events() if e.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


@each_of("write", [write_qwen2_vl, write_qwen2_5_vl, write_fixed_size, write_qwen2_audio, write_qwen2_5_omni])
def test_every_family_can_be_asked(write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a device that has no memory and computes nothing, and counts what it would hold."""
    path = write(tmp_path / "tiny")
    items, checkpoint = largest(path, MediaConfig()), Checkpoint(path)
    assert items and {item.kind for item in items} <= family_of(checkpoint).modalities.keys()
    with LiveBytes() as live:
        install_card(monkeypatch, Card(live, total=1 << 40))
        trial = CacheSize(n_blocks=200, block_size=16, nbytes=0, max_model_len=LENGTH)
        found = profile_on_device(on_meta(path), trial, CONFIG, items)
    knobs = {
        line: setting
        for line, _, setting in memory_rows(
            1, CacheSize(n_blocks=1, block_size=16, nbytes=0, max_model_len=16), CONFIG, found
        )
    }
    for item in items:
        named = "fixed by the model" if item.fixed else BOUNDS[item.kind]
        n = -(-256 // item.n_tokens)  # a step makes 256 embeddings: so many of the largest have as many
        if n > 1:
            named = "--max-encoder-tokens"
        assert knobs[f"encoder peak, {item.kind}"] == f"{named} ({n * item.n_tokens} tokens, measured)"
    assert found.step > 1 << 20 and all(nbytes > 1 << 17 for nbytes, _ in found.encoders.values())


def test_the_samplers_share_is_an_upper_bound() -> None:
    vocab, n = 20000, 6
    rows = [
        Row(sampling=SamplingParams(max_tokens=1, seed=i, temperature=9.0, top_p=0.99, logprobs=True), position=i)
        for i in range(n)
    ]
    masks = torch.full((n, vocab // 32), -1, dtype=torch.int32), torch.tensor(BITS)
    truth = really(lambda: sample(torch.zeros(n, vocab), rows, masks=masks))
    bound = sampling_bytes(n, vocab)
    assert truth <= bound <= 1.5 * truth, (truth, bound)


@each_of(
    ("seqs", "tokens", "blocks", "length"),
    [
        (6, 512, 100, 400),
        (1, 8, 3, 40),
        (16, 4, 9, 16),
        (8, 4096, 64, 100),
        (2, 1, 1, 5),
        (6, 512, 3, 33),
        (16, 512, 5, 64),
        (8, 512, 7, 33),
    ],  # fmt: skip
)
def test_full_steps_fit_the_cache_and_the_budget(seqs: int, tokens: int, blocks: int, length: int) -> None:
    config = EngineConfig(max_seqs=seqs, max_batched_tokens=tokens, block_size=16)
    size = CacheSize(n_blocks=blocks, block_size=16, nbytes=0, max_model_len=min(length, blocks * 16))
    for q_lens, kv_lens in full_steps(size, config):
        assert 1 <= sum(q_lens) <= tokens and 1 <= len(q_lens) <= seqs and sum(-(-kv // 16) for kv in kv_lens) <= blocks
        assert all(1 <= q <= kv <= size.max_model_len for q, kv in zip(q_lens, kv_lens, strict=True))
    late = full_steps(size, config)[1]
    assert late[1][0] == size.max_model_len, "the longest past there is"


def test_live_bytes_are_counted_until_they_end() -> None:
    with LiveBytes() as live:
        kept = torch.zeros(1000)
        for _ in range(5):
            view = (torch.zeros(500) + 1)[10:]
        assert live.live == 4000 + 2000 and live.peak == 4000 + 2000 + 2000 + 2000
        del view
        kept.add_(1)
    assert live.live == 4000 and len(kept) == 1000


def test_the_table_names_bytes_and_settings() -> None:
    size = CacheSize(n_blocks=1, block_size=16, nbytes=99, max_model_len=16)
    assert memory_rows(77, size, CONFIG, None) == (
        ("weights", 77, "--dtype"), ("KV cache", 99, "--kv-cache-mib"),
        ("embeddings, at most", CONFIG.embedding_bytes, "--embedding-mib"),
    )  # fmt: skip
    four = msgspec.structs.replace(CONFIG, tensor_parallel=4)
    assert memory_rows(77, size, four, None)[2][2] == "--embedding-mib / 4"


def test_the_table_of_a_device_shows_what_is_kept_for_all_of_it() -> None:
    size = CacheSize(n_blocks=1, block_size=16, nbytes=99, max_model_len=16)
    found = Profile(encoders={"image": (7, 3), "video": (8, 5)}, step=6, held=80, graphs=5)
    rows = memory_rows(77, size, CONFIG, found)
    assert [(nbytes, setting) for _, nbytes, setting in rows[:7]] == [
        (77, "--dtype"), (7, "--max-pixels (3 tokens, measured)"), (8, "--max-video-pixels (5 tokens, measured)"),
        (6, "--max-batched-tokens, --max-seqs (measured)"), (80, "kept for the largest of them (measured)"),
        (5, "--max-seqs (measured)"), (99, "--kv-cache-mib"),
    ]  # fmt: skip
    assert len({line for line, _, _ in rows}) == len(rows) == 9
    assert "graphs of decodes" not in {line for line, _, _ in memory_rows(77, size, CONFIG, replace(found, graphs=0))}


@each_of(
    ("asked", "here", "setting"), [(1024, 256, "fixed: what more there is lies in host memory"),
                                   (256, 256, "--embedding-mib"), (3, 3, "--embedding-mib")],
)  # fmt: skip
def test_a_device_holds_a_part_of_the_embeddings(asked: int, here: int, setting: str) -> None:
    size = CacheSize(n_blocks=1, block_size=16, nbytes=99, max_model_len=16)
    config = msgspec.structs.replace(CONFIG, embedding_bytes=asked * MIB)
    found = Profile(encoders={}, step=6)
    assert memory_rows(77, size, config, found)[-2:] == (
        ("embeddings, at most", here * MIB, setting),
        ("embeddings in host memory, at most", asked * MIB, "--embedding-mib"),
    )


@each_of(("image", "step", "held", "most"), [(9, 3, 2, 9), (3, 9, 2, 9), (3, 2, 9, 9)])
def test_encoders_and_steps_take_turns(image: int, step: int, held: int, most: int) -> None:
    assert Profile(encoders={"image": (image, 1)}, step=step, held=held).working == most
    assert Profile(encoders={}, step=step).working == step
