"""The golden continuations out of the engine: mixed batches of several alphas, cut, staggered and preempted."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from model.engine.engine import Engine
from model.engine.messages import Generate, SamplingParams
from model.net.multimodal import MultimodalLM
from shm import write_segment
from tests.model.engine.engine_harness import EngineHarness, engine_at, engine_harness_at
from tests.parity.golden_qwen_vl import GOLDEN, IMG_PAD, MARGIN, Case, cases, checkpoint_with, pixels_of, processor_at
from tests.parity.harness import load_ours
from tokenization.messages import MediaItem, Prepared
from tokenization.prepare import write_words

pytestmark = pytest.mark.network

PLAIN = ("text_1", "text_300", "image_1", "image_2", "image_only", "chat_image", "text_24")
_LONG = ("len130", "image", "len64", "decode_across", "len300", "decode_across_100", "len80")
LONG = tuple(f"seq64_{name}" for name in _LONG)


@dataclass(frozen=True)
class Setup:
    path: Path
    model: MultimodalLM
    members: tuple[Case, ...]

    @property
    def longest(self) -> int:
        return max(len(case.ids) + len(case.greedy) for case in self.members)


@pytest.fixture(scope="module", params=[PLAIN, LONG], ids=["plain", "seq64"])
def setup(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Setup:
    members = tuple(cases()[name] for name in request.param)
    path = checkpoint_with(tmp_path_factory.mktemp("ckpt"), **members[0].settings)
    assert all(case.settings == members[0].settings for case in members)
    return Setup(path, load_ours(path), members)


@pytest.fixture
def harness(setup: Setup, tmp_path: Path) -> Iterator[EngineHarness]:
    with engine_harness_at(setup.path, tmp_path / "root") as found:
        yield found


def generate_of(case: Case, harness: EngineHarness, setup: Setup) -> Generate:
    """The golden ids as a worker would send them: pixels in leases, words in the first two pads of each span."""
    processor = processor_at(setup.path)
    ids = np.array(case.ids)
    media = []
    arrays = [pixels_of(processor, image) for image in case.images]
    names = harness.pool.lease(case.name, [pixels.nbytes for pixels, _ in arrays]) if arrays else ()
    for name, span, (pixels, measure) in zip(names, case.spans, arrays, strict=True):
        write_segment(harness.root, name, pixels)
        write_words(ids, (span,), name, pixels.shape)
        media.append(MediaItem(kind="image", spans=(span,), grid=measure.grid))
    sampling = SamplingParams(max_tokens=len(case.greedy), temperature=0.0, seed=0)
    positions = np.broadcast_to(np.arange(len(ids), dtype=np.int32), (3, len(ids))).copy()
    prepared = Prepared(
        request_id=case.name, input_ids=ids, media=tuple(media), positions=positions, position_delta=0, seconds={}
    )
    return Generate(prepared=prepared, sampling=sampling)


def answer(
    setup: Setup, harness: EngineHarness, engine: Engine, every: int = 0, members: Sequence[Case] | None = None
) -> None:
    """Submit all members, one every few steps, and compare what comes out."""
    members = setup.members if members is None else members
    for case in members:
        harness.submit(engine, generate_of(case, harness, setup))
        for _ in range(every):
            harness.book(engine.step())
    harness.run(engine)
    harness.assert_clean(engine)
    for case in members:
        assert harness.finished[case.name].reason == "done"
        found = harness.tokens(case.name)
        assert len(found) == len(case.greedy)
        for step, token in enumerate(case.greedy):
            if case.margins[step] <= MARGIN and found[step] != token:
                break  # either was right; from here on the histories differ
            if token == IMG_PAD:
                break  # a token of random weights that the engine never draws
            assert found[step] == token, f"{case.name}: token {step}"


def test_most_tokens_are_a_test() -> None:
    for names in (PLAIN, LONG):
        margins = [margin for name in names for margin in cases()[name].margins]
        assert sum(margin > MARGIN for margin in margins) > 0.9 * len(margins)


@pytest.mark.parametrize("tokens", [2048, 17])
def test_all_together(setup: Setup, harness: EngineHarness, tokens: int) -> None:
    answer(setup, harness, engine_at(setup.model, harness.root, tokens=tokens))


def test_staggered(setup: Setup, harness: EngineHarness) -> None:
    answer(setup, harness, engine_at(setup.model, harness.root, tokens=128), every=2)


def test_one_at_a_time(setup: Setup, harness: EngineHarness) -> None:
    answer(setup, harness, engine_at(setup.model, harness.root, seqs=1, tokens=512))


@pytest.mark.parametrize("tokens", [2048, 48])
def test_preempted(setup: Setup, harness: EngineHarness, tokens: int) -> None:
    """Prompts fit, answers do not: prompt and answer are prefilled once more, with the alpha that the prompt had."""
    members = sorted(setup.members, key=lambda case: len(case.greedy))[-2:]
    blocks = sum(-(-len(case.ids) // 4) for case in members) + 3
    engine = engine_at(
        setup.model, harness.root, tokens=tokens, block_size=4, kv_tokens=4 * blocks, max_model_len=setup.longest
    )
    answer(setup, harness, engine, members=members)
    assert engine.stats.preemptions > 0


def test_the_golden_chat_as_a_client_sends_it(tmp_path: Path) -> None:
    """From a chat's parts to the original's tokens, beside a chat of text and one of two pictures."""
    case = cases()["image_1"]
    path = checkpoint_with(tmp_path / "ckpt")
    pictures = [Image.open(GOLDEN / name) for name in case.images]
    with engine_harness_at(path, tmp_path / "root") as harness:
        engine = engine_at(load_ours(path), harness.root, tokens=100)
        sampling = SamplingParams(max_tokens=4, temperature=0.0, seed=0)
        solo: dict[str, list[int]] = {}
        chats: dict[str, list[str | Image.Image]] = {
            "text": ["hello"],
            "one": [pictures[0], "what"],
            "two": [pictures[0], "and", pictures[0], "?"],
        }
        for name, parts in chats.items():
            harness.submit(engine, harness.prepare(name, parts, sampling))
            harness.run(engine)
            solo[name] = harness.tokens(name)
        for name, parts in chats.items():
            harness.submit(engine, harness.prepare(f"again-{name}", parts, sampling))
        harness.run(engine)
        harness.assert_clean(engine)
        assert {name: harness.tokens(f"again-{name}") for name in chats} == solo
