"""Tower, resampler and decoder of the original Qwen-VL against what its own code computed, array by array."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from configs.checkpoint import Checkpoint
from model.net.absolute_vit import AbsoluteVit
from model.net.multimodal import MultimodalLM
from model.net.vision import resample_positions
from model.weights import Weights
from tests.parity.golden_qwen_vl import (
    CKPT,
    IMAGES,
    LOGITS,
    VISION,
    Case,
    cases,
    checkpoint_with,
    pixels_of,
    processor_at,
    read_json,
    sample_of,
)
from tests.parity.harness import OurRun, Sample, load_ours
from tests.tables import entries

pytestmark = pytest.mark.network

VISION_BAR, LOGITS_BAR = 1e-5, 1e-4


@pytest.fixture(scope="module")
def model() -> MultimodalLM:
    return load_ours(CKPT)


@pytest.fixture(scope="module")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """model_of(**settings): the golden weights under another config.json."""

    @cache
    def load(settings: tuple[tuple[str, Any], ...]) -> MultimodalLM:
        return load_ours(checkpoint_with(tmp_path_factory.mktemp("ckpt"), **dict(settings)))

    return lambda settings: load(tuple(sorted(settings.items())))


def tower_of(model: MultimodalLM) -> AbsoluteVit:
    tower = model.encoders["image"]
    assert isinstance(tower, AbsoluteVit)
    return tower


def assert_close(ours: Tensor | np.ndarray, golden: np.ndarray, bar: float) -> None:
    found = np.asarray(ours)
    assert found.shape == golden.shape
    assert np.abs(found - golden).max() < bar


def assert_stage(ours: Tensor, golden: np.ndarray) -> None:
    """An array of the tower: within VISION_BAR of its standard deviation."""
    assert_close(ours, golden, VISION_BAR * float(golden.std()))


# ---- vision


def test_pixels(model: MultimodalLM) -> None:
    with entries() as entry:
        for image in IMAGES:
            with entry(image):
                check_pixels(model, image)


def check_pixels(model: MultimodalLM, image: str) -> None:
    pixels, _ = pixels_of(processor_at(), image)
    embed = tower_of(model).embed
    normal = torch.from_numpy(pixels).float() * embed.scale + embed.shift  # [1024, 588]
    planes = normal.view(32, 32, 3, 14, 14).permute(2, 0, 3, 1, 4).reshape(-1)  # (channel, row, y, column, x)
    assert_close(planes[VISION["pick"]], VISION[f"pre/{image}/picked"], 1e-6)
    mean, std = VISION[f"pre/{image}/mean_std"]
    assert planes.mean().item() == pytest.approx(mean, abs=1e-5)
    assert planes.std(correction=0).item() == pytest.approx(std, abs=1e-5) or planes.std().item() == pytest.approx(std)


def test_embeddings(model: MultimodalLM) -> None:
    with entries() as entry:
        for image in IMAGES:
            pixels, measure = pixels_of(processor_at(), image)
            found = model.encode("image", [torch.from_numpy(pixels)], [measure.grid])[0]
            with entry(image):
                assert_stage(found, VISION[f"out/{image}"])


@torch.inference_mode()
def test_every_stage_of_the_tower(model: MultimodalLM) -> None:
    tower = tower_of(model)
    x = tower.embed(torch.from_numpy(pixels_of(processor_at(), "cat_300x420.png")[0]))
    assert_stage(x[::8], VISION["stage/conv1"])
    assert tower.norm is not None
    x = tower.norm(x + tower.positions)
    assert_stage(x[::8], VISION["stage/ln_pre"])
    for i, block in enumerate(tower.blocks):
        x = block(x, None, [1024])
        assert_stage(x[::8], VISION[f"stage/block{i}"])
    pooled: Any = replace(tower.connector, norm=lambda x: x, proj=lambda x: x)  # type: ignore[type-var]
    assert_stage(pooled(x), VISION["stage/attn_pool"])


def test_resampled_positions(model: MultimodalLM) -> None:
    weights = Weights(Checkpoint(CKPT), {}, torch.float32)
    table = weights.take("transformer.visual.positional_embedding")
    assert_close(resample_positions(table, 32), VISION["abs_pos_1024"], 1e-6)
    assert_close(resample_positions(table, 8), VISION["abs_pos_64"], 1e-6)
    assert resample_positions(table, 16) is table
    pool = weights.take("transformer.visual.attn_pool.pos_embed")
    assert_close(resample_positions(pool, 32)[::16], VISION["pool_pos_1024_rows"], 1e-6)


@pytest.mark.parametrize("size", [224, 112])
def test_other_image_sizes(tmp_path: Path, size: int) -> None:
    path = checkpoint_with(tmp_path / "ckpt", visual_image_size=size)
    pixels, measure = pixels_of(processor_at(path), "cat_300x420.png")
    assert measure.grid == (1, size // 14, size // 14) and measure.n_tokens == 256
    found = load_ours(path).encode("image", [torch.from_numpy(pixels)], [measure.grid])[0]
    assert_stage(found, VISION[f"size{size}/out/cat_300x420.png"])


def test_a_picture_of_another_size_is_refused(model: MultimodalLM) -> None:
    with pytest.raises(ValueError, match="32 x 32 patches"):
        model.encode("image", [torch.zeros(256, 588, dtype=torch.uint8)], [(1, 16, 16)])[0]


# ---- language


def text_sample(ids: list[int]) -> Sample:
    return Sample(
        ids=torch.tensor(ids), positions=torch.arange(len(ids)).expand(3, -1), grids=(), pixels=(),
        pads=torch.empty(0, dtype=torch.int64),
    )  # fmt: skip


def test_every_position(model: MultimodalLM) -> None:
    ids = read_json("lm.json")["text_all"]["input_ids"]
    assert_close(OurRun(model).whole(text_sample(ids)), LOGITS["text_all"], LOGITS_BAR)


@torch.inference_mode()
def test_every_layer(model: MultimodalLM) -> None:
    """Hidden states: embeddings, behind the first block (compared normalised), behind the final norm."""
    ids = torch.tensor(read_json("lm.json")["text_all"]["input_ids"])
    golden = LOGITS["text_all_hidden"]
    assert_close(model.embed(ids), golden[0], 1e-6)
    ones, eps = torch.ones(model.hidden_size), model.decoder.spec.eps

    def unweighted(x: torch.Tensor, residual: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        assert residual is not None
        return model.ops.add_rms_norm(x, residual, ones, eps)

    first = replace(model.decoder, layers=model.decoder.layers[:1], norm=unweighted)
    expected = model.ops.rms_norm(torch.from_numpy(golden[1]), ones, eps)
    found = OurRun(replace(model, decoder=first, head=lambda x: x)).whole(text_sample(ids.tolist()))
    assert_close(found, expected.numpy(), LOGITS_BAR)
    found = OurRun(replace(model, head=lambda x: x)).whole(text_sample(ids.tolist()))
    assert_close(found, golden[2], LOGITS_BAR)


def test_a_batch_that_the_original_padded(model: MultimodalLM) -> None:
    """Left padding moves columns, not what is computed: rows of any length stand beside each other."""
    entry = read_json("lm.json")["left_padded_batch_last"]
    rows = [
        [i for i, seen in zip(ids, mask, strict=True) if seen]
        for ids, mask in zip(entry["input_ids"], entry["attention_mask"], strict=True)
    ]
    assert len({len(row) for row in rows}) == 2
    run = OurRun(model)
    found = run.step([(key, text_sample(ids), len(ids)) for key, ids in enumerate(rows)], sample_all=False)
    for key in range(2):
        assert_close(found[key][0], LOGITS["left_padded_batch_last"][key], LOGITS_BAR)


def forced(model: MultimodalLM, case: Case, chunks: list[int]) -> Tensor:
    """Logits of the last prompt position and behind each golden token, the prompt in chunks, then one by one."""
    run, sample, n = OurRun(model, blocks=80), sample_of(case, processor_at()), len(case.ids)
    assert sum(chunks) == n
    out = [run.step([(0, sample, length)], sample_all=False)[0] for length in chunks]
    out += [run.step([(0, sample, 1)], sample_all=False)[0] for _ in case.greedy]
    return torch.cat(out[len(chunks) - 1 :])


def check(found: Tensor, case: Case) -> None:
    assert_close(found, case.logits, LOGITS_BAR)
    for step, token in enumerate(case.greedy):
        if case.margins[step] > 0.01:
            assert found[step].argmax().item() == token


def test_prefill_and_decode(model_of: Any) -> None:
    with entries() as entry:
        for name, case in cases().items():
            with entry(name):
                check(forced(model_of(case.settings), case, [len(case.ids)]), case)


def test_a_prompt_in_chunks(model_of: Any) -> None:
    """alpha is that of the whole prompt, from the first chunk on. One by one only the shorter ones, which are texts."""
    with entries() as entry:
        for name in ("image_2", "seq64_len130", "seq64_image", "seq64_decode_across_100"):
            case, n = cases()[name], len(cases()[name].ids)
            for chunk in (63, 100) if case.images else (1, 63, 100):
                with entry(f"{name} by {chunk}"):
                    sizes = [min(chunk, n - at) for at in range(0, n, chunk)]
                    check(forced(model_of(case.settings), case, sizes), case)


def test_generated_tokens_prefilled_again(model_of: Any) -> None:
    """After a preemption prompt and answer are one prefill; its length must not change alpha."""
    with entries() as entry:
        for name in ("seq64_decode_across", "seq64_decode_across_100", "seq64_len64", "image_1"):
            with entry(name):
                check_again(model_of, cases()[name])


def check_again(model_of: Any, case: Case) -> None:
    sample = sample_of(case, processor_at())
    n, total = len(case.ids), len(sample.ids)
    found = OurRun(model_of(case.settings), blocks=80).whole(sample, [total])
    check(found[n - 1 :], case)
    again = OurRun(model_of(case.settings), blocks=80).whole(sample, [n - 7, total - n + 7])
    check(again[n - 1 :], case)


def test_different_alphas_in_one_batch(model_of: Any) -> None:
    members = [cases()[name] for name in cases() if cases()[name].settings == {"seq_length": 64}]
    assert {(len(case.ids) - 1) // 64 for case in members} >= {0, 1, 2, 4}
    run = OurRun(model_of({"seq_length": 64}), blocks=120)
    samples = [sample_of(case, processor_at()) for case in members]
    n_steps = min(len(case.greedy) for case in members)
    rows: list[list[Tensor]] = [[] for _ in members]
    for step in range(n_steps + 1):
        work = [
            (i, sample, len(case.ids) if step == 0 else 1)
            for i, (case, sample) in enumerate(zip(members, samples, strict=True))
        ]
        for i, logits in run.step(work, sample_all=False).items():
            rows[i].append(logits[0])
    for i, case in enumerate(members):
        assert_close(torch.stack(rows[i]), case.logits[: n_steps + 1], LOGITS_BAR)


def test_the_tests_can_fail(model_of: Any) -> None:
    """Without logn, and with the alpha of what is in the cache, the golden numbers are missed."""
    case = cases()["seq64_decode_across"]
    without = forced(model_of({"seq_length": 64, "use_logn_attn": False}), case, [len(case.ids)])
    assert np.abs(without.numpy() - case.logits).max() > 10 * LOGITS_BAR
    sample = replace(sample_of(case, processor_at()), n_prompt=None)
    grown = OurRun(model_of({"seq_length": 64})).whole(sample)[len(case.ids) - 1 :]
    assert np.abs(grown.numpy() - case.logits).max() > 10 * LOGITS_BAR


def test_bfloat16_runs(model: MultimodalLM) -> None:
    case = cases()["image_1"]
    half = load_ours(CKPT, torch.bfloat16)
    found = forced(half, case, [len(case.ids)])
    assert np.abs(found.numpy() - case.logits).max() < 0.15
