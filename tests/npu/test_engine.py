"""The engine over NpuOps: pictures, cut prompts, shared blocks and preemption, beside float32 on the CPU."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from model.engine.engine import Engine
from model.engine.messages import SamplingParams
from model.net.multimodal import MultimodalLM
from tests.model.engine.engine_harness import EngineHarness, Parts, engine_at, engine_harness_at, picture
from tests.model.ops.present import present_ops
from tests.npu.families import BLOCK_SIZE, write_family
from tests.parity.harness import load_over
from tests.tables import each_of

pytestmark = pytest.mark.network

Answers = dict[str, list[list[tuple[int, float]]]]
"""By request, for each answer: token of every step, and by how much its log-probability led."""

TOKENS = 14  # of an answer
SAMPLING = SamplingParams(max_tokens=TOKENS, temperature=0.0, seed=0, logprobs=True, top_logprobs=2)
REQUESTS: dict[str, tuple[Parts, int]] = {  # what is asked, and for how many answers
    "grows": (["brown fox " * 31], 2),  # 119 tokens: into a second block while it answers
    "picture": (["brown fox ", picture(120, 90, 2)], 2),
    "shares": (["brown fox " * 134], 3),  # 428 tokens: three answers over three full blocks
    "both": ([picture(60, 60, 2), "brown fox " * 31], 1),
}
WAYS = {  # budget of a step, blocks of the cache, tokens of the answers that grow
    "wide": (2048, 32, TOKENS),
    "cut": (7, 32, TOKENS),
    "tight": (2048, 5, 140),
    "shared": (2048, 9, TOKENS),  # holds the three answers that share, but their tables name twelve
}
LEAD = {"npu-bfloat16": 0.2}  # of the best token in float32: from where on it must be the same


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_family("qwen2_vl", tmp_path_factory.mktemp("family"))


@pytest.fixture(scope="module")
def models(path: Path) -> dict[str, MultimodalLM]:
    return {name: load_over(present_ops(name), path) for name in ("torch-float32", "npu-bfloat16")}


@pytest.fixture(scope="module")
def harness(path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineHarness]:
    with engine_harness_at(path, tmp_path_factory.mktemp("root")) as found:
        yield found


@pytest.fixture(scope="module")
def expected(models: dict[str, MultimodalLM], harness: EngineHarness) -> Answers:
    return answers(harness, engine_at(models["torch-float32"], harness.root, tokens=2048), TOKENS)


def answers(harness: EngineHarness, engine: Engine, grown: int) -> Answers:
    """Of all requests together; those that grow are answered with `grown` tokens."""
    for name, (parts, n) in REQUESTS.items():
        sampling = msgspec.structs.replace(SAMPLING, n=n, max_tokens=grown if name == "grows" else TOKENS)
        harness.submit(engine, harness.prepare(name, parts, sampling))
    harness.run(engine)
    harness.assert_clean(engine)
    found: Answers = {}
    for name, (_, n) in REQUESTS.items():
        assert harness.finished.pop(name).reason == "done"
        harness.read.pop(name, None)
        found[name] = [[] for _ in range(n)]
        for event in harness.events.pop(name):
            (_, best), (_, second) = event.token.top
            found[name][event.index].append((event.token.id, best - second))
    return found


@each_of("ops", LEAD)
@each_of("way", WAYS)
def test_tokens_are_those_of_float32(
    models: dict[str, MultimodalLM], harness: EngineHarness, expected: Answers, way: str, ops: str
) -> None:
    """As far as each answer is clear: whether prompts are cut, blocks are shared or answers preempt each other."""
    tokens, blocks, grown = WAYS[way]
    engine = engine_at(
        models[ops], harness.root, tokens=tokens, block_size=BLOCK_SIZE, kv_tokens=blocks * BLOCK_SIZE,
        max_model_len=4 * BLOCK_SIZE,
    )  # fmt: skip
    found = answers(harness, engine, grown)
    compared = total = 0
    for name, sequences in expected.items():
        for right, ours in zip(sequences, found[name], strict=True):
            assert len(ours) == (grown if name == "grows" else TOKENS)
            clear = next((i for i, (_, lead) in enumerate(right) if lead < LEAD[ops]), len(right))
            assert [token for token, _ in ours[:clear]] == [token for token, _ in right[:clear]]
            compared, total = compared + clear, total + len(right)
    assert compared >= 0.6 * total
    assert (engine.stats.preemptions > 0) == (way == "tight")
