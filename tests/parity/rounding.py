"""How far from transformers the order of our sums may carry us: bfloat16 logits, float32 towers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from model.net.multimodal import MultimodalLM
from tests.parity.harness import Layouts, OurRun, Sample, hf_logits, load_hf, load_ours, make_sample
from tests.tables import entries

CHUNKS = (None, 1, 7, 16)  # tokens of a chunk; None: the whole prompt
LOGITS_BAR = 1e-4
N_LOGITS = 1_000_000  # at least so many are compared in bfloat16
TIMES = 6  # a layout stands in a prompt of bfloat16: few long prompts cost less than many short ones
FURTHER = 1.1  # times as far from the exact result as transformers' own rounding, at most
TOWER_BAR = 5e-5  # of the standard deviation of a tower's output: float32 rounds so far by 1e-5, by the processor


def assert_logits(ours: MultimodalLM, sample: Sample, expected: Tensor, chunks: Sequence[int | None] = CHUNKS) -> None:
    """float32, every position, in chunks of so many tokens each: within LOGITS_BAR of transformers' `expected`."""
    n = len(sample.ids)
    for chunk in chunks:
        sizes = None if chunk is None else [chunk] * (n // chunk) + ([n % chunk] if n % chunk else [])
        furthest = float((OurRun(ours, blocks=256).whole(sample, sizes) - expected).abs().max())
        assert furthest < LOGITS_BAR, f"logits in chunks of {chunk} tokens differ by {furthest}"


def check_layouts(ours: MultimodalLM, hf: Any, path: Path, layouts: Mapping[str, Layouts]) -> None:
    """`assert_logits` of a prompt of each layout; a wrong one is named."""
    with entries() as entry:
        for name, layout in layouts.items():
            sample = make_sample(path, layout)
            expected = hf_logits(hf, sample, path)
            with entry(name):
                assert expected.std() > 0.5
                assert_logits(ours, sample, expected)


def check_bfloat16(
    path: Path, exact_hf: Any, layouts: Sequence[Layouts],
    sample_at: Callable[[Path, Layouts, int], Sample] = make_sample,
    logits_by: Callable[[Any, Sample, Path], Tensor] = hf_logits,
) -> None:  # fmt: skip
    """Our bfloat16 logits are no further from float32 (`exact_hf`) than those of transformers, on the same prompts.

    By the mean and the 99.9th percentile of |error| over N_LOGITS, prompts whole and in chunks. The mean holds for each
    layout alone, too: one that is wrong cannot hide among the others. sample_at: a random prompt of a layout;
    logits_by: what transformers makes of it.
    """
    ours, theirs = load_ours(path, torch.bfloat16), load_hf(path, torch.bfloat16)
    found: list[list[Tensor]] = [[] for _ in layouts]  # of each layout: [2, logits] of each prompt, ours first
    for seed in count():
        for layout, errors in zip(layouts, found, strict=True):
            sample = sample_at(path, list(layout) * TIMES, seed)
            exact, n = logits_by(exact_hf, sample, path), len(sample.ids)
            both = [OurRun(ours).whole(sample, None if seed % 2 else [n - 9, 1, 8]), logits_by(theirs, sample, path)]
            errors.append(torch.stack([(logits - exact).abs().flatten() for logits in both]))
        if sum(part.shape[1] for errors in found for part in errors) >= N_LOGITS:
            break
    for errors in found:
        our_mean, their_mean = torch.cat(errors, dim=1).mean(1).tolist()
        assert our_mean <= FURTHER * their_mean
    every = torch.cat([part for errors in found for part in errors], dim=1)
    last = every.shape[1] // 1000  # numbers above the 99.9th percentile
    our_tail, their_tail = every.topk(last).values[:, -1].tolist()
    our_mean, their_mean = every.mean(1).tolist()
    assert 0 < our_mean <= FURTHER * their_mean and our_tail <= FURTHER * their_tail


def assert_tower(found: Tensor, expected: Tensor) -> None:
    """Within TOWER_BAR of each other, float32 [tokens, hidden]."""
    assert found.shape == expected.shape
    assert float((found - expected).abs().max()) <= TOWER_BAR * float(expected.std())


def assert_no_further(outputs: Iterable[tuple[Tensor, Tensor, Tensor]]) -> None:
    """Of (ours, transformers', transformers' in float64) [tokens, hidden] of many media: by the root mean square."""
    ours, theirs, exact = (torch.cat([part.double() for part in parts]) for parts in zip(*outputs, strict=True))
    our_error, their_error = (float((found - exact).square().mean().sqrt()) for found in (ours, theirs))
    assert 0 < our_error <= FURTHER * their_error
