"""What deepstack adds to layers is there wherever a media token is computed; each mistake that would lose it is seen.

The answer that all are compared with is computed in one chunk, without a cache; tests/parity says that it is right.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from torch import Tensor

from model.engine.messages import SamplingParams, TokenEvent
from model.net.decoder import Decoder
from model.net.multimodal import MultimodalLM
from model.staging.embeddings import EmbeddingStore
from tests.model.engine.engine_harness import EngineHarness, Parts, clip, engine_at, engine_harness_at
from tests.model.engine.prefix_harness import CHAT, SCORED, asked, assert_same, submit
from tests.parity.harness import load_ours
from tests.samples.videos import make_clip
from tests.tiny.qwen3_vl import TEXT, VISION, write_qwen3_vl

pytestmark = [pytest.mark.families, pytest.mark.network]

TAPS, HIDDEN = len(VISION["deepstack_visual_indexes"]), TEXT["hidden_size"]
TWO = msgspec.structs.replace(SCORED, n=2, temperature=0.8, seed=3)
FILM: Parts = ["look: ", clip(make_clip(20, rate=10, size=(64, 96))), "and say what it is"]
Plant = Callable[[pytest.MonkeyPatch, MultimodalLM], MultimodalLM]


@dataclass(frozen=True)
class Place:
    model: MultimodalLM
    harness: EngineHarness

    def ask(self, parts: Parts = CHAT, sampling: SamplingParams = SCORED, *, twice: bool = False, **engine: Any) -> Any:
        """What is said; twice: to the second of two that ask the same, one after the other."""
        started = engine_at(self.model, self.harness.root, **engine)
        for name in ("first", "again") if twice else ("again",):
            asked(self.harness, started, name, parts, sampling)
        found = self.harness.events.pop("again")
        self.harness.events.clear()
        self.harness.finished.clear()
        self.harness.read.clear()
        self.harness.assert_clean(started)
        return found


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_qwen3_vl(tmp_path_factory.mktemp("tiny"), tied=False)


@pytest.fixture
def place(path: Path, tmp_path: Path) -> Iterator[Place]:
    with engine_harness_at(path, tmp_path / "root") as harness:
        yield Place(load_ours(path), harness)


def right(place: Place, parts: Parts = CHAT, sampling: SamplingParams = SCORED) -> Sequence[TokenEvent]:
    found: Sequence[TokenEvent] = place.ask(parts, sampling, tokens=2048, prefix_cache="off", keeps=False)
    return found


HOW: dict[str, dict[str, Any]] = {
    "chunks of 1": {"tokens": 1, "prefix_cache": "off"},
    "chunks of 7": {"tokens": 7, "prefix_cache": "off"},
    "chunks of 16": {"tokens": 16, "prefix_cache": "off"},
    "embeddings kept": {"tokens": 16, "prefix_cache": "off", "twice": True},
    "prefix kept": {"tokens": 16, "block_size": 4, "twice": True},
}
SAID = [pytest.param(CHAT, id="picture"), pytest.param(FILM, id="video")]


@pytest.mark.parametrize("parts", SAID)
@pytest.mark.parametrize("how", HOW)
def test_however_it_is_computed(place: Place, how: str, parts: Parts) -> None:
    assert_same(place.ask(parts, **HOW[how]), right(place, parts))


@pytest.mark.parametrize("parts", SAID)
def test_several_answers(place: Place, parts: Parts) -> None:
    assert_same(
        sorted(place.ask(parts, TWO, tokens=7, twice=True), key=lambda event: event.index),
        sorted(right(place, parts, TWO), key=lambda event: event.index),
    )


@pytest.mark.parametrize("parts", SAID)
def test_a_preempted_prompt(place: Place, parts: Parts) -> None:
    """Two fit with their prompts and not with their answers: one is computed again, with what is kept of its item."""
    n = len(place.harness.prepare("length", parts).prepared.input_ids)
    place.harness.pool.retire("length")
    place.harness.pool.settle("length")
    wanted, blocks = right(place, parts), 2 * -(-n // 4) + 2
    engine = engine_at(
        place.model, place.harness.root, tokens=16, block_size=4, kv_tokens=4 * blocks, max_model_len=n + 16,
        prefix_cache="off",
    )  # fmt: skip
    for name in ("a", "b"):
        submit(place.harness, engine, name, parts)
    place.harness.run(engine)
    assert engine.stats.preemptions > 0
    for name in ("a", "b"):
        assert_same(place.harness.events[name], wanted)


def test_what_it_takes_is_counted(place: Place) -> None:
    """Of an item, of the budget of all requests, and of what a call may encode."""
    model, engine = place.model, engine_at(place.model, place.harness.root, embedding_bytes=1 << 20)
    assert (model.deepstack, model.media_width) == (TAPS, (1 + TAPS) * HIDDEN)
    generate = submit(place.harness, engine, "a", CHAT)
    place.harness.book(engine.step())
    tokens = sum(n for _, n in generate.prepared.media[0].spans)
    assert engine.stats.embedding_bytes == tokens * (1 + TAPS) * HIDDEN * 4
    assert engine.max_media_tokens == (1 << 20) // ((1 + TAPS) * HIDDEN * 4)
    place.harness.run(engine)


# ---- mistakes


def with_additions(model: MultimodalLM, change: Callable[[list[Any]], list[Any]]) -> MultimodalLM:
    """change: of what the layers add, in their order."""
    decoder: Decoder = model.decoder
    additions = change([layer.addition for layer in decoder.layers])
    layers = [replace(layer, addition=one) for layer, one in zip(decoder.layers, additions, strict=True)]
    return replace(model, decoder=replace(decoder, layers=tuple(layers)))


def layers_swapped(_: pytest.MonkeyPatch, model: MultimodalLM) -> MultimodalLM:
    return with_additions(model, lambda found: [None, *found[:0:-1]])


def layer_too_early(_: pytest.MonkeyPatch, model: MultimodalLM) -> MultimodalLM:
    return with_additions(model, lambda found: [*found[1:], None])


def one_left_out(_: pytest.MonkeyPatch, model: MultimodalLM) -> MultimodalLM:
    return with_additions(model, lambda found: [*found[:-1], None])


def lost(patch: pytest.MonkeyPatch, when: Callable[[EmbeddingStore[Any], Any, int], bool]) -> None:
    """Rows whose embedding is there, and nothing behind it."""
    part = EmbeddingStore.part

    def cut(store: EmbeddingStore[Any], key: Any, first: int, last: int) -> Tensor:
        found = part(store, key, first, last)
        if when(store, key, first):
            found = found.clone()
            found[:, HIDDEN:] = 0
        return found

    patch.setattr(EmbeddingStore, "part", cut)


def missing_in_the_second_chunk(patch: pytest.MonkeyPatch, model: MultimodalLM) -> MultimodalLM:
    lost(patch, lambda store, key, first: first > 0)
    return model


def missing_after_a_cache_hit(patch: pytest.MonkeyPatch, model: MultimodalLM) -> MultimodalLM:
    """What another request encoded: of the second time that its first rows are asked for."""
    seen: list[Any] = []

    def again(store: EmbeddingStore[Any], key: Any, first: int) -> bool:
        seen.extend([key] if first == 0 else [])
        return seen.count(key) > 1

    lost(patch, again)
    return model


MISTAKES: dict[str, tuple[Plant, str]] = {
    "a wrong layer": (layers_swapped, "chunks of 16"),
    "a layer too early": (layer_too_early, "chunks of 16"),
    "a layer left out": (one_left_out, "chunks of 16"),
    "missing in the second chunk": (missing_in_the_second_chunk, "chunks of 7"),
    "missing after a cache hit": (missing_after_a_cache_hit, "embeddings kept"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_seen(place: Place, mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, how = MISTAKES[mistake]
    wanted = right(place)
    assert_same(place.ask(**HOW[how]), wanted)
    spoiled = Place(plant(monkeypatch, place.model), place.harness)
    with pytest.raises(AssertionError):
        assert_same(spoiled.ask(**HOW[how]), wanted)
