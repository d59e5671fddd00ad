"""Our networks against transformers' on this CPU: decode, vision tower and prefill of one mid-size random checkpoint.

    python -m benchmarks.model_speed [--dtype float32 bfloat16] [--rounds 3] [--threads 2] [--block-size 16 32 128]

Variants run in turn, round after round, in one process; figures are medians, and ratios are medians of the rounds' own
ratios, so that neighbours on the machine count for both sides. The checkpoint (240 M parameters) is written once. With
--block-size our decodes and prefills over such blocks are compared with each other, and transformers is left out.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from model.forward_batch import ForwardBatch
from model.net.multimodal import MultimodalLM
from tests.parity.harness import Sample, hf_pixels, load_hf, load_ours, make_sample
from tests.tiny.qwen2_vl import write_qwen2_vl

CHECKPOINT = Path.home() / ".cache" / "pixelferry-bench" / "qwen2-vl-240m"
IMAGE = (1, 34, 46)  # 640 x 480 after resizing: 1564 patches, 391 tokens
STEPS = 8  # decode steps in one measurement
BLOCK = 128  # tokens
LENGTHS = [450, 433, 470, 401, 455, 449, 380, 461]  # of a batch of 8

Variant = Callable[[], object]


def checkpoint() -> Path:
    """The mid-size checkpoint; written on first use."""
    if not (CHECKPOINT / "model.safetensors").is_file():
        write_qwen2_vl(
            CHECKPOINT, hidden=896, inter=4864, layers=12, heads=14, kv_heads=2, vocab=32768,
            width=512, depth=8, vision_heads=8, mlp_ratio=4,
        )  # fmt: skip
    return CHECKPOINT


class OurDecode:
    """Sequences of unequal length with a filled cache, each taking one token a step."""

    def __init__(self, model: MultimodalLM, lengths: list[int], block: int = BLOCK) -> None:
        self.model, self.block = model, block
        per = -(-(max(lengths) + STEPS) // block)
        self.kv = model.kv_cache(per * len(lengths) + 1, block)
        for key, value in self.kv:
            key.normal_()
            value.normal_()
        blocks = torch.randperm(per * len(lengths), generator=torch.Generator().manual_seed(0)) + 1
        self.tables = blocks.view(len(lengths), per).int()
        self.lengths = lengths

    def __call__(self) -> None:
        for step in range(STEPS):
            at = torch.tensor(self.lengths) + step
            n = len(self.lengths)
            param = self.tables.long().gather(1, (at // self.block)[:, None])[:, 0] * self.block + at % self.block
            batch = ForwardBatch(
                ids=torch.zeros(n, dtype=torch.long), positions=at.expand(3, n),
                media_rows=torch.empty(0, dtype=torch.long), media_embeds=None, slots=param,
                block_tables=self.tables, q_lens=(1,) * n, kv_lens=tuple((at + 1).tolist()),
                sample_rows=torch.arange(n),
            )  # fmt: skip
            self.model.compute_logits(self.model.forward(batch, self.kv))


class HfDecode:
    """transformers' forward loop over its own cache, all sequences equally long."""

    def __init__(self, model: Any, n: int, length: int) -> None:
        from transformers import DynamicCache

        self.model, self.n, self.length = model, n, length
        self.cache = DynamicCache(config=model.config.text_config)
        model(input_ids=torch.zeros(n, length, dtype=torch.long), past_key_values=self.cache, logits_to_keep=1)

    def __call__(self) -> None:
        for step in range(STEPS):
            positions = torch.full((3, self.n, 1), self.length + step)
            ids = torch.zeros(self.n, 1, dtype=torch.long)
            self.model(input_ids=ids, past_key_values=self.cache, logits_to_keep=1, position_ids=positions)
        self.cache.crop(-STEPS)


def our_prefill(model: MultimodalLM, sample: Sample, block: int = BLOCK) -> Variant:
    """Vision tower and prefill of one prompt, to the logits of its last row."""
    n = len(sample.ids)
    blocks = -(-n // block)
    kv = model.kv_cache(blocks, block)

    def run() -> object:
        embeds = model.encode("image", [sample.pixels[0]], [sample.grids[0]])[0]
        batch = ForwardBatch(
            ids=sample.ids, positions=sample.positions, media_rows=sample.pads, media_embeds=embeds,
            slots=torch.arange(n), block_tables=torch.arange(blocks, dtype=torch.int32)[None],
            q_lens=(n,), kv_lens=(n,), sample_rows=torch.tensor([n - 1]),
        )  # fmt: skip
        return model.compute_logits(model.forward(batch, kv))

    return run


def our_chunk(model: MultimodalLM, block: int, past: int = 1024, n: int = 256) -> Variant:
    """A step of prefill behind cached tokens, whose blocks lie anywhere."""
    blocks = -(-(past + n) // block)
    kv = model.kv_cache(blocks, block)
    for key, value in kv:
        key.normal_()
        value.normal_()
    table = torch.randperm(blocks, generator=torch.Generator().manual_seed(0)).int()
    at = torch.arange(past, past + n)
    batch = ForwardBatch(
        ids=torch.zeros(n, dtype=torch.long), positions=at.expand(3, n), media_rows=torch.empty(0, dtype=torch.long),
        media_embeds=None, slots=table.long()[at // block] * block + at % block, block_tables=table[None],
        q_lens=(n,), kv_lens=(past + n,), sample_rows=torch.tensor([n - 1]),
    )  # fmt: skip
    return lambda: model.compute_logits(model.forward(batch, kv))


def hf_prefill(model: Any, sample: Sample, path: Path, dtype: torch.dtype) -> Variant:
    """The same by transformers, on ready pixel values."""
    pixels, grid = hf_pixels(sample, path).to(dtype), torch.tensor(sample.grids)
    return lambda: model(
        input_ids=sample.ids[None], position_ids=sample.positions[:, None], pixel_values=pixels, image_grid_thw=grid,
        logits_to_keep=1, use_cache=True,
    )  # fmt: skip


def hf_vision(model: Any, sample: Sample, path: Path, dtype: torch.dtype) -> Variant:
    pixels, grid = hf_pixels(sample, path).to(dtype), torch.tensor(sample.grids)
    return lambda: model.model.visual(pixels, grid_thw=grid)


def interleave(
    variants: dict[str, Variant], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Milliseconds of each variant in each round, after one round that is thrown away."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    for turn in range(rounds + 1):
        for name, run in variants.items():
            start = clock()
            run()
            if turn:
                times[name].append((clock() - start) * 1e3)
    return times


def measure(dtype: torch.dtype, rounds: int) -> None:
    """Print one line for each pair of variants."""
    path = checkpoint()
    start = time.perf_counter()
    ours = load_ours(path, dtype)
    print(f"{dtype}: ours loaded in {time.perf_counter() - start:.1f} s")
    hf = load_hf(path, dtype)
    sample = make_sample(path, [26, IMAGE, 32])
    pairs: dict[str, tuple[Variant, Variant, float, int]] = {
        "decode, batch 1": (OurDecode(ours, [450]), HfDecode(hf, 1, 450), 0.75, STEPS),
        "decode, batch 8": (OurDecode(ours, LENGTHS), HfDecode(hf, 8, 450), 0.6, STEPS),
        "vision tower": (
            lambda: ours.encode("image", [sample.pixels[0]], [sample.grids[0]])[0],
            hf_vision(hf, sample, path, dtype), 1.05, 1,
        ),
        "vision tower + prefill": (our_prefill(ours, sample), hf_prefill(hf, sample, path, dtype), 1.05, 1),
    }  # fmt: skip
    variants: dict[str, Variant] = {}
    for name, (our, their, _, _) in pairs.items():
        variants[f"{name}: ours"], variants[f"{name}: hf"] = our, their
    times = interleave(variants, rounds)
    for name, (_, _, goal, per) in pairs.items():
        our_ms, hf_ms = times[f"{name}: ours"], times[f"{name}: hf"]
        ratio = statistics.median(a / b for a, b in zip(our_ms, hf_ms, strict=True))
        print(
            f"{str(dtype)[6:]:9s} {name:24s} ours {statistics.median(our_ms) / per:8.1f} ms   "
            f"transformers {statistics.median(hf_ms) / per:8.1f} ms   ratio {ratio:.2f} (goal {goal})"
        )


def measure_blocks(dtype: torch.dtype, rounds: int, sizes: list[int]) -> None:
    """Print one line for each kind of step and each size of block; ratios are to the last size."""
    model, path = load_ours(checkpoint(), dtype), checkpoint()
    sample = make_sample(path, [26, IMAGE, 32])
    makes: dict[str, Callable[[int], Variant]] = {
        "decode, batch 1": lambda size: OurDecode(model, [450], size),
        "decode, batch 8": lambda size: OurDecode(model, LENGTHS, size),
        "decode, batch 8, long": lambda size: OurDecode(model, [4 * length for length in LENGTHS], size),
        "vision tower + prefill": lambda size: our_prefill(model, sample, size),
        "chunk of 256 at 1,024": lambda size: our_chunk(model, size),
    }
    for name, make in makes.items():
        times = interleave({str(size): make(size) for size in sizes}, rounds, time.process_time)
        base = times[str(sizes[-1])]
        for size, ms in times.items():
            ratios = sorted(a / b for a, b in zip(ms, base, strict=True))
            print(
                f"{str(dtype)[6:]:9s} {name:24s} blocks of {size:>4s} {statistics.median(ms):8.1f} ms   "
                f"ratio {statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", nargs="+", choices=["float32", "bfloat16"], default=["float32", "bfloat16"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--block-size", nargs="+", type=int, default=[])
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    with torch.inference_mode():
        for name in args.dtype:
            dtype: torch.dtype = getattr(torch, name)
            if args.block_size:
                measure_blocks(dtype, args.rounds, args.block_size)
            else:
                measure(dtype, args.rounds)


if __name__ == "__main__":
    main()
