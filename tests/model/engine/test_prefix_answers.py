"""Each family asked cold and warm: prompts cut anywhere, several answers, preemption, videos, stop strings, aborts."""

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from model.engine.engine import Engine
from model.engine.messages import SamplingParams, TokenEvent
from model.net.multimodal import MultimodalLM
from tests.model.engine.engine_harness import EngineHarness, Parts, clip, engine_at, engine_harness_at, picture
from tests.model.engine.prefix_harness import OTHER, PICTURE, SCORED, assert_same, submit
from tests.parity.golden_qwen_vl import checkpoint_with
from tests.parity.harness import load_ours
from tests.samples.sounds import make_wav
from tests.samples.soundtracks import tone
from tests.samples.videos import make_clip
from tests.tiny.families import NAMES, WRITERS
from tokenization.chat.parts import Media
from tokenization.text.detokenize import Detokenizer, StopStrings

pytestmark = pytest.mark.network

FAMILIES = [name if name == "qwen2_vl" else pytest.param(name, marks=pytest.mark.matrix) for name in NAMES]
DRAWN = SamplingParams(
    max_tokens=10, temperature=0.9, top_p=0.9, seed=5, repetition_penalty=1.2, logprobs=True, top_logprobs=2
)
Ask = tuple[Parts, SamplingParams]
Answers = dict[str, list[TokenEvent]]


@dataclass(frozen=True)
class Place:
    model: MultimodalLM
    harness: EngineHarness
    asks: dict[str, Ask]
    known: list[Answers]  # of an engine without a cache, once they were asked for

    def right(self) -> Answers:
        if not self.known:
            self.known.extend(self.run(1, "off", tokens=2048, max_model_len=2048, kv_tokens=1 << 14)[0])
        return self.known[0]

    @property
    def longest(self) -> int:
        """Tokens of the longest answer with its prompt."""
        found = 0
        for i, (parts, sampling) in enumerate(self.asks.values()):
            prepared = self.harness.prepare(f"measured-{i}", parts, sampling).prepared
            found = max(found, len(prepared.input_ids) + sampling.max_tokens)
            self.harness.pool.retire(f"measured-{i}")
            self.harness.pool.settle(f"measured-{i}")
        return found

    def run_out(self, engine: Engine, preempts: bool) -> None:
        """preempts: every fifth step the youngest gives its blocks back, beside what the cache's size brings about."""
        step = 0
        while not engine.idle:
            self.harness.book(engine.step())
            engine.check_integrity()
            step += 1
            if preempts and step % 5 == 0 and engine._scheduler._running:
                engine._scheduler._preempt(engine._scheduler._running[-1])

    def run(self, waves: int, prefix_cache: Any, *, preempts: bool = False, **limits: Any) -> tuple[list[Answers], Any]:
        """Everything that is asked, several times over. -> what was answered to each wave, and the engine's figures"""
        engine, found = engine_at(self.model, self.harness.root, prefix_cache=prefix_cache, **limits), []
        for _ in range(waves):
            for name, (parts, sampling) in self.asks.items():
                submit(self.harness, engine, name, parts, sampling)
                self.harness.book(engine.step())
            self.run_out(engine, preempts)
            assert {name: self.harness.finished.pop(name).reason for name in self.asks} == dict.fromkeys(
                self.asks, "done"
            )
            self.harness.read.clear()
            found.append({name: self.harness.events.pop(name) for name in self.asks})
            self.harness.assert_clean(engine)
        return found, engine.stats


def seen(seed: int, audio: bool) -> Any:
    if not audio:
        return PICTURE if seed == 1 else OTHER if seed == 2 else picture(90, 60, seed)
    source = "data:audio/wav;base64," + base64.b64encode(make_wav(tone(9000, seed))).decode()
    return Media(kind="audio", source=source, param="")


def asks(audio: bool, one: bool, video: bool) -> dict[str, Ask]:
    """one: a prompt of this family takes one medium; video: it takes a clip."""
    first, second = seen(1, audio), seen(2, audio)
    system = "you are somebody who answers in few words and looks closely at all that there is "
    moving = clip(make_clip(2, size=(64, 64))) if video else None
    clips: dict[str, Ask] = {} if moving is None else {
        "clip": ([system, moving, "what moves?"], msgspec.structs.replace(SCORED, max_tokens=20)),
        "clip-too": ([system, moving, "and", first, "what stands?"], DRAWN),
    }  # fmt: skip
    return clips | {
        "one": ([system, first, "what is this?"], msgspec.structs.replace(SCORED, max_tokens=30)),
        "same": ([system, first, "and what is behind it?"], DRAWN),
        "other": ([system, second, "what is this?"], msgspec.structs.replace(SCORED, max_tokens=24)),
        "both": (
            [system, first, "and", "nothing" if one else second, "which is larger?"],
            msgspec.structs.replace(DRAWN, n=3),
        ),
        "text": ([system, "what is there?"], msgspec.structs.replace(SCORED, max_tokens=40)),
    }


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """By family, each written and loaded once."""
    known: dict[str, tuple[Path, MultimodalLM, list[Answers]]] = {}

    def checkpoint(family: str) -> tuple[Path, MultimodalLM, list[Answers]]:
        if family not in known:
            path = tmp_path_factory.mktemp(family) / "tiny"
            settings = {"seq_length": 64, "use_dynamic_ntk": True, "use_logn_attn": True}
            made = checkpoint_with(path, **settings) if family == "qwen_vl" else WRITERS[family](path)
            known[family] = made, load_ours(made), []
        return known[family]

    yield checkpoint


@pytest.fixture
def place(family: str, checkpoints: Any, tmp_path: Path) -> Iterator[Place]:
    path, model, known = checkpoints(family)
    with engine_harness_at(path, tmp_path / "root") as harness:
        takes = model.placeholder_ids
        yield Place(model, harness, asks("image" not in takes, family == "fuyu", "video" in takes), known)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("tokens", "tight"), [pytest.param(1, False, marks=pytest.mark.matrix), (7, True), (16, False), (2048, True)]
)
def test_the_answers_of_an_engine_without_a_cache(place: Place, tokens: int, tight: bool) -> None:
    """Cold, beside each other, and warm."""
    right = place.right()
    longest = place.longest
    limits = {"kv_tokens": (longest // 4 + 6) * 4, "max_model_len": longest + 8} if tight else {"max_model_len": 2048}
    waves, stats = place.run(2, "on", tokens=tokens, block_size=4, preempts=tight, **{"kv_tokens": 1 << 14, **limits})
    for wave in waves:
        for name, events in wave.items():
            assert_same(by_answer(events), by_answer(right[name]))
    assert stats.prefix_hits > (0 if tight else 0.2) * stats.prefix_queries
    assert (stats.preemptions > 0) == tight


def by_answer(events: list[TokenEvent]) -> list[TokenEvent]:
    return sorted(events, key=lambda event: event.index)


def stopped(place: Place, events: list[TokenEvent], stop: str) -> int:
    """After how many of these tokens `stop` is found, as the server finds it; 0: not at all."""
    written, found = Detokenizer(place.harness.processor.tokenizer), StopStrings([stop])
    for i, event in enumerate(events):
        if found.push(written.push(event.token.id))[1]:
            return i + 1
    return 0


def end(harness: EngineHarness, engine: Engine, name: str) -> None:
    """As the server ends one that left, or whose stop string it found."""
    said = engine.abort(name)
    harness.book([] if said is None else [said])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tokens", [7, 2048])
def test_who_leaves_and_who_finds_a_stop_string(place: Place, tokens: int) -> None:
    """Beside each other over warm caches: one leaves after each number of steps, one at its stop string."""
    right = place.right()
    written = Detokenizer(place.harness.processor.tokenizer)
    text = "".join(written.push(event.token.id) for event in right["text"])
    stop = text[len(text) // 2 :][:3]
    length = stopped(place, right["text"], stop)
    assert 0 < length < len(right["text"])
    engine = engine_at(
        place.model, place.harness.root, tokens=tokens, block_size=4, max_model_len=2048, kv_tokens=1 << 13
    )
    harness, names = place.harness, [name for name in place.asks if name != "text"]
    for i, steps in enumerate(range(0, 28, 3)):
        leaves, stays = names[i % len(names)], names[(i + 1) % len(names)]
        for name, of in (("leaves", leaves), ("stays", stays), ("stops", "text")):
            submit(harness, engine, name, *place.asks[of])
        while not engine.idle:
            if steps == 0 and "leaves" not in harness.finished:
                end(harness, engine, "leaves")
            steps -= 1
            harness.book(engine.step())
            engine.check_integrity()
            if "stops" not in harness.finished and stopped(place, harness.events.get("stops", []), stop):
                end(harness, engine, "stops")
        assert len(harness.events["stops"]) == length
        assert_same(harness.events.pop("stops"), right["text"][:length])
        assert_same(by_answer(harness.events.pop("stays")), by_answer(right[stays]))
        assert harness.finished.pop("leaves").reason in ("abort", "done")
        harness.events.clear()
        harness.finished.clear()
        harness.read.clear()
        harness.assert_clean(engine)
