"""Large published models without their weights: what each of 2, 4 and 8 ranks reads, or the sentence why not."""

from pathlib import Path

import pytest

from configs.checkpoint import CheckpointError
from configs.serve import GIB
from model.device import EMBEDDINGS
from model.engine.kv_cache_size import DEVICE_SHARE
from tests.model.net.asked import Built, built, elements, times_read
from tests.model.net.published_sizes import MODELS

pytestmark = pytest.mark.ranks
PAGE = Path(__file__).parents[2] / "docs" / "tensor-parallel.md"
RANKS = (2, 4, 8)
CARD = 64  # GiB
DECODERS = ("model.", "lm_head.")


@pytest.mark.parametrize("model", MODELS)
def test_each_number_of_ranks(tmp_path: Path, model: str) -> None:
    """Every element once, or on every rank; no rank more than its share; the page has the figures."""
    path = MODELS[model](tmp_path / "model")
    whole = built(path, 0, 1)
    rows = [row(model, 1, whole)]
    for n in RANKS:
        ranks = [built(path, rank, n) for rank in range(n)]
        asked = [one.asked for one in ranks]
        for name, times in times_read(asked).items():
            size = elements(whole.asked)[name]
            divided = name.startswith(DECODERS) and "norm" not in name
            assert times == (1 if divided else n), name
            row_size = asked[0].shapes[name][-1]
            assert all(elements(one)[name] <= -(-size * times // n) + row_size * divided for one in asked), name
        rows.append(row(model, n, ranks[0]))
        assert max(one.asked.taken_bytes for one in ranks) == ranks[0].asked.taken_bytes
    assert "\n".join(rows) in PAGE.read_text()


@pytest.mark.parametrize(("n", "model", "words"), [
    (3, "Qwen2.5-VL-72B", "64 heads of queries evenly (ranks that share all: 1, 2, 4, 8, 16, 32, 64)"),
    (16, "Qwen2.5-VL-32B", "40 heads of queries evenly (ranks that share all: 1, 2, 4, 8)"),
    (5, "InternVL3-38B", "8 heads of keys and values evenly (ranks that share all: 1, 2, 4, 8)"),
])  # fmt: skip
def test_other_numbers_are_a_sentence(tmp_path: Path, n: int, model: str, words: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        built(MODELS[model](tmp_path / "model"), 0, n)
    assert str(caught.value) == f"config.json: {n} ranks do not share {words}"


def row(model: str, n: int, one: Built) -> str:
    """Of a rank in bfloat16: weights, those of the decoder, KV cache of a thousand tokens, thousands on a card."""
    decoder = sum(size for name, size in elements(one.asked).items() if name.startswith(DECODERS))
    weights, kv = one.asked.taken_bytes / GIB, one.kv.bytes_per_token(2) * 1000 / GIB
    left = DEVICE_SHARE * (CARD - weights - EMBEDDINGS / GIB)
    room = f"{1000 * int(left / kv):,}" if left > kv else "none"
    return f"| {model} | {n} | {weights:.1f} | {2 * decoder / GIB:.1f} | {one.kv.kv_heads} | {kv:.3f} | {room} |"
