"""Large published models without their weights: what each of 2, 4 and 8 ranks reads, or the sentence why not."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from configs.checkpoint import CheckpointError
from configs.serve import GIB
from server.plan import RANKS, plan
from tests.model.net.asked import built, elements, times_read
from tests.model.net.published_sizes import MODELS

pytestmark = [pytest.mark.ranks, pytest.mark.network]
PAGE = Path(__file__).parents[2] / "docs" / "tensor-parallel.md"
DECODERS = ("model.", "lm_head.")


@pytest.mark.parametrize("model", MODELS)
def test_each_number_of_ranks(tmp_path: Path, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every element once, or on every rank; no rank more than its share. `plan` counts alike, by config.json alone.

    The page has what it prints.
    """
    path = MODELS[model](tmp_path / "model")
    whole = built(path, 0, 1)
    taken = {1: whole.asked.taken_bytes}
    for n in RANKS[1:]:
        ranks = [built(path, rank, n) for rank in range(n)]
        asked = [one.asked for one in ranks]
        for name, times in times_read(asked).items():
            size = elements(whole.asked)[name]
            divided = name.startswith(DECODERS) and "norm" not in name
            assert times == (1 if divided else n), name
            row_size = asked[0].shapes[name][-1]
            assert all(elements(one)[name] <= -(-size * times // n) + row_size * divided for one in asked), name
        taken[n] = ranks[0].asked.taken_bytes
        assert max(one.asked.taken_bytes for one in ranks) == taken[n]
    (tmp_path / "alone").mkdir()
    shutil.copy(path / "config.json", tmp_path / "alone")
    assert plan(["--model", str(tmp_path / "alone"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {one["n"]: one["weight_bytes"] for one in told["tensor_parallel"]} == taken
    assert "\n".join(row(model, one) for one in told["tensor_parallel"]) in PAGE.read_text()


@pytest.mark.parametrize(("n", "model", "words"), [
    (3, "Qwen2.5-VL-72B", "64 heads of queries evenly (ranks that share all: 1, 2, 4, 8, 16, 32, 64)"),
    (16, "Qwen2.5-VL-32B", "40 heads of queries evenly (ranks that share all: 1, 2, 4, 8)"),
    (5, "InternVL3-38B", "8 heads of keys and values evenly (ranks that share all: 1, 2, 4, 8)"),
])  # fmt: skip
def test_other_numbers_are_a_sentence(tmp_path: Path, n: int, model: str, words: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        built(MODELS[model](tmp_path / "model"), 0, n)
    assert str(caught.value) == f"config.json: {n} ranks do not share {words}"


def row(model: str, one: Mapping[str, Any]) -> str:
    """Of a rank in GiB: weights, those of the decoder, KV cache of a thousand tokens, thousands on its card."""
    weights, decoder, kv = one["weight_bytes"] / GIB, one["decoder_bytes"] / GIB, one["kv_bytes_per_token"] * 1000 / GIB
    room = "none" if one["kv_tokens"] is None else f"{one['kv_tokens'] // 1000 * 1000:,}"
    return f"| {model} | {one['n']} | {weights:.1f} | {decoder:.1f} | {one['kv_heads']} | {kv:.3f} | {room} |"
