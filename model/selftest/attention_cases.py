"""Attention in its shapes: paged prefill, chunks, decodes and mixed steps, segments, cross; and what fills the cache.

Random queries see hardly more than an average. So each shape is tried with peaked ones, too: each looks for one key.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from model.ops.base import Ops
from model.selftest.cases import Call, Case, Inputs, normal

BLOCK = 128  # tokens
_POISON = 25.0  # finite: what no sequence owns is masked, and a kernel may multiply it by zero
_PEAK = 6.0  # times a key: its score stands far above all others
STEPS = {
    "one token": ([1], [1]),
    "decode": ([1], [129]),
    "decodes": ([1] * 8, [1, 37, 127, 128, 129, 700, 5, 256]),
    "prefill": ([300], [300]),
    "chunk behind a past": ([70], [410]),
    "mixed": ([1, 130, 1, 40, 1], [300, 130, 40, 333, 128]),
}
WIDTHS = (256, 512, 1024, 2048)  # of block tables; the last is of the longest sequence that is served
HEADS = ((6, 2, 32), (14, 2, 64), (4, 4, 80), (8, 8, 104), (28, 4, 128), (4, 2, 192))  # query, key-value, width


SMALL_STEP = ([1, 3, 1, 20], [130, 40, 5, 20])  # new and cached tokens: a decode, a chunk, a decode, a prefill
SMALL_SEGMENTS = (4, 4, 17)


def small_attention_cases() -> Iterator[Case]:
    """In sizes whose results can be stored."""
    for peaked in (False, True):
        yield _paged("small", *SMALL_STEP, (4, 2, 32), peaked)
        yield _segments(2, 32, SMALL_SEGMENTS, peaked)
        yield _cross(2, 32, 9, 20, peaked)
    yield _write(1, 32)
    yield _copy(1, 32)


def attention_cases() -> Iterator[Case]:
    for step, lengths in STEPS.items():
        for heads in HEADS if step in ("decodes", "mixed") else ((14, 2, 64), (28, 4, 128)):
            for peaked in (False, True):
                yield _paged(step, *lengths, heads, peaked)
    for n_heads, dim in ((5, 32), (16, 64), (16, 72), (16, 80), (4, 128)):
        for segments in ((1,), (64, 64, 64, 16, 4), (257,)):
            for peaked in (False, True):
                yield _segments(n_heads, dim, segments, peaked)
    for peaked in (False, True):
        yield _cross(16, 104, 65, 400, peaked)
    for kv_heads, dim in ((2, 32), (2, 64), (4, 80), (4, 128)):
        yield _write(kv_heads, dim)
    yield _copy(2, 64)


def long_cases(rows: int) -> Iterator[Case]:
    """Decodes of so many sequences, one of which fills a wide table; a chunk behind a long past. Four heads over one.

    Few heads: so all of a cache can be drawn, and each block differs from the others.
    """
    for width in WIDTHS:
        others = [1025 + 61 * i for i in range(rows - 1)]
        name = f"{rows} rows, a table of {width:,} blocks"
        yield _paged(name, [1] * rows, [*others, width * BLOCK], (4, 1, 128), True)
    yield _paged("64 tokens behind 32,704", [64], [32_768], (4, 1, 128), True)


def _drawn(
    generator: torch.Generator, shapes: tuple[int, int, int, int, int], targets: Tensor | None
) -> dict[str, Tensor]:
    """shapes: query rows, key rows, heads, key-value heads, width. targets: the key that each query row looks for."""
    rows, n_keys, heads, kv_heads, dim = shapes
    keys = normal(generator, n_keys, kv_heads, dim)
    query = normal(generator, rows, heads, dim)
    if targets is not None:
        query = _PEAK * keys[targets].repeat_interleave(heads // kv_heads, 1)
    return {"query": query, "key": keys, "value": normal(generator, n_keys, kv_heads, dim)}


def _paged(step: str, q_lens: Sequence[int], kv_lens: Sequence[int], heads: tuple[int, int, int], peaked: bool) -> Case:
    n_heads, kv_heads, dim = heads
    counts = [-(-n // BLOCK) for n in kv_lens]

    def draw(generator: torch.Generator) -> dict[str, Tensor]:
        targets, start = [], 0
        for q, kv in zip(q_lens, kv_lens, strict=True):
            targets += [start + int(torch.randint(kv - q + j + 1, (1,), generator=generator)) for j in range(q)]
            start += kv
        shapes = (sum(q_lens), sum(kv_lens), n_heads, kv_heads, dim)
        found = _drawn(generator, shapes, torch.tensor(targets) if peaked else None)
        order = torch.randperm(sum(counts) + 2, generator=generator)[: sum(counts)].tolist()
        table = torch.zeros(len(counts), max(counts), dtype=torch.int32)
        slots = []
        for i, kv in enumerate(kv_lens):
            own = torch.tensor([order.pop() for _ in range(counts[i])])
            table[i, : counts[i]] = own
            slots.append((own[:, None] * BLOCK + torch.arange(BLOCK)).flatten()[:kv])
        return {**found, "table": table, "slots": torch.cat(slots)}

    def bind(ops: Ops, inputs: Inputs) -> Call:
        caches = ops.kv_cache(sum(counts) + 2, BLOCK, kv_heads, dim)
        for cache in caches:
            cache.fill_(_POISON)
        ops.write_kv(inputs["key"], inputs["value"], *caches, inputs["slots"])
        attend = ops.plan_attention(q_lens, kv_lens, inputs["table"], BLOCK)
        return lambda: [attend(inputs["query"], *caches)]

    name = f"{step}, {n_heads} over {kv_heads} heads of {dim}, {'peaked' if peaked else 'random'}"
    return Case(op="plan_attention", name=name, draw=draw, bind=bind)


def _segments(heads: int, dim: int, lengths: Sequence[int], peaked: bool) -> Case:
    rows = sum(lengths)

    def draw(generator: torch.Generator) -> dict[str, Tensor]:
        targets, start = [], 0
        for length in lengths:
            targets.append(start + torch.randint(length, (length,), generator=generator))
            start += length
        found = _drawn(generator, (rows, rows, heads, heads, dim), torch.cat(targets) if peaked else None)
        return {"qkv": torch.stack([found["query"], found["key"], found["value"]], dim=1)}

    def bind(ops: Ops, inputs: Inputs) -> Call:
        query, key, value = inputs["qkv"].unbind(1)  # views, as of a fused projection
        return lambda: [ops.segment_attention(query, key, value, lengths)]

    kind = "peaked" if peaked else "random"
    shown = "+".join(map(str, lengths))
    return Case(op="segment_attention", name=f"{shown} rows, {heads} heads of {dim}, {kind}", draw=draw, bind=bind)


def _cross(heads: int, dim: int, rows: int, keys: int, peaked: bool) -> Case:
    def draw(generator: torch.Generator) -> dict[str, Tensor]:
        targets = torch.randint(keys, (rows,), generator=generator) if peaked else None
        return _drawn(generator, (rows, keys, heads, heads, dim), targets)

    return Case(
        op="cross_attention", name=f"{rows} over {keys}, {heads} heads of {dim}, {'peaked' if peaked else 'random'}",
        draw=draw,
        bind=lambda ops, i: lambda: [ops.cross_attention(i["query"], i["key"], i["value"])],
    )  # fmt: skip


def _write(kv_heads: int, dim: int) -> Case:
    """Into slots of four blocks in any order; the rest of the cache stays as it was."""
    rows = 200

    def draw(generator: torch.Generator) -> dict[str, Tensor]:
        slots = torch.randperm(4 * BLOCK, generator=generator)[:rows]
        drawn = {name: normal(generator, rows, kv_heads, dim) for name in ("key", "value")}
        return {**drawn, "slots": slots}

    def bind(ops: Ops, inputs: Inputs) -> Call:
        caches = ops.kv_cache(4, BLOCK, kv_heads, dim)
        for cache in caches:
            cache.fill_(_POISON)

        def run() -> list[Tensor]:
            ops.write_kv(inputs["key"], inputs["value"], *caches, inputs["slots"])
            return [cache[..., :dim] for cache in caches]

        return run

    return Case(op="write_kv", name=f"{rows} rows, {kv_heads} heads of {dim}", draw=draw, bind=bind, tolerance=0.0)


def _copy(kv_heads: int, dim: int) -> Case:
    def draw(generator: torch.Generator) -> dict[str, Tensor]:
        drawn = {name: normal(generator, 6, BLOCK, kv_heads, dim) for name in ("key", "value")}
        return {**drawn, "source": torch.tensor([4, 1]), "target": torch.tensor([0, 5])}

    def bind(ops: Ops, inputs: Inputs) -> Call:
        caches = ops.kv_cache(6, BLOCK, kv_heads, dim)
        for cache, given in zip(caches, (inputs["key"], inputs["value"]), strict=True):
            cache[..., :dim] = given

        def run() -> list[Tensor]:
            ops.copy_blocks(*caches, inputs["source"], inputs["target"])
            return [cache[..., :dim] for cache in caches]

        return run

    return Case(op="copy_blocks", name=f"2 of 6 blocks, {kv_heads} heads of {dim}", draw=draw, bind=bind, tolerance=0.0)
