"""Prompts that look alike and are not: each is answered as an engine without a cache answers it.

Each stands beside the mistake that it is there for: where that is planted, the comparison fails.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from model.engine import media
from model.engine.block_keys import BlockKeys, chain_root
from model.engine.messages import Generate
from model.net.multimodal import MultimodalLM
from tests.model.engine.engine_harness import EngineHarness, Parts, engine_at, engine_harness_at, with_prepared
from tests.model.engine.prefix_harness import CHAT, OTHER, SCORED, asked, assert_same, keyed
from tests.parity.golden_qwen_vl import checkpoint_with
from tests.parity.harness import load_ours
from tokenization.placeholders import text_only

pytestmark = pytest.mark.network

Ask = Callable[[], Generate]
CHANGED: Parts = [CHAT[0], OTHER, CHAT[2]]  # the same ids
TRAINED = 64  # tokens: longer prompts turn by another base


@dataclass(frozen=True)
class Place:
    """Where two prompts are asked, one behind the other."""

    model: MultimodalLM
    harness: EngineHarness

    def compare(self, first: Ask, second: Ask) -> None:
        """The second one behind the first, and alone, without a cache."""
        after = self._tokens([first(), second()], "on")
        alone = self._tokens([second()], "off")
        assert_same(after[-1], alone[0])
        ours, others = ([event.token for event in events] for events in after)
        assert ours != others, "they can be told apart"

    def _tokens(self, asks: list[Generate], prefix_cache: Any) -> list[Any]:
        engine, found = engine_at(self.model, self.harness.root, tokens=2048, prefix_cache=prefix_cache), []
        for generate in asks:
            self.harness.submit(engine, generate)
            self.harness.run(engine)
            assert self.harness.finished.pop(generate.request_id).reason == "done"
            self.harness.read.pop(generate.request_id, None)
            found.append(self.harness.events.pop(generate.request_id))
        return found

    def chat(self, name: str, parts: Parts = CHAT) -> Generate:
        return keyed(self.harness.prepare(name, parts, SCORED), parts)

    def prompt(self, name: str, ids: Any) -> Generate:
        return Generate(prepared=text_only(name, ids), sampling=msgspec.structs.replace(SCORED, max_tokens=4))

    def ids(self) -> None:
        ids = np.random.default_rng(5).integers(1, 200, 60)
        other = np.array([*ids[:20], 7, *ids[21:]])
        self.compare(lambda: self.prompt("a", ids), lambda: self.prompt("b", other))

    def picture(self) -> None:
        self.compare(lambda: self.chat("a"), lambda: self.chat("b", CHANGED))

    def positions(self) -> None:
        def moved() -> Generate:
            generate = self.chat("b")
            positions = generate.prepared.positions.copy()
            positions[1:, 20:] *= 3
            return with_prepared(generate, positions=positions)

        self.compare(lambda: self.chat("a"), moved)

    def base(self) -> None:
        ids = np.random.default_rng(5).integers(1, 200, TRAINED + 1)
        self.compare(lambda: self.prompt("below", ids[:-1]), lambda: self.prompt("above", ids))

    def salt(self) -> None:
        engine = engine_at(self.model, self.harness.root, tokens=2048)
        taken = [
            asked(self.harness, engine, name, CHAT, salt=salt) for name, salt in (("a", b"a"), ("b", b"b"), ("c", b"a"))
        ]
        assert taken[0] == taken[1] == 0 < taken[2]


@pytest.fixture(scope="module")
def turning(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint_with(tmp_path_factory.mktemp("ntk") / "ckpt", seq_length=TRAINED, use_dynamic_ntk=True)


@pytest.fixture
def place(model: MultimodalLM, harness: EngineHarness) -> Place:
    return Place(model, harness)


@pytest.fixture
def qwen_vl(turning: Path, tmp_path: Path) -> Iterator[Place]:
    with engine_harness_at(turning, tmp_path / "ntk") as harness:
        yield Place(load_ours(turning), harness)


def test_other_ids(place: Place) -> None:
    place.ids()


def test_the_same_ids_with_another_picture(place: Place) -> None:
    place.picture()


def test_the_same_picture_at_another_position(place: Place) -> None:
    place.positions()


def test_below_and_above_the_trained_length(qwen_vl: Place) -> None:
    qwen_vl.base()


def test_another_salt(place: Place) -> None:
    place.salt()


def blind(monkeypatch: pytest.MonkeyPatch, field: str) -> None:
    """Keys that do not see these numbers of a sequence."""
    real = BlockKeys._extend

    def extend(self: BlockKeys, last: int) -> None:
        seen = getattr(self._answer, field)
        setattr(self._answer, field, np.zeros_like(seen))
        real(self, last)
        setattr(self._answer, field, seen)

    monkeypatch.setattr(BlockKeys, "_extend", extend)


def test_planted_keys_without_ids(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    blind(monkeypatch, "ids")
    with pytest.raises(AssertionError):
        place.ids()


def test_planted_keys_without_content(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("model.engine.block_keys._content", lambda item: b"")
    with pytest.raises(AssertionError):
        place.picture()


def test_planted_keys_without_positions(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    blind(monkeypatch, "positions")
    with pytest.raises(AssertionError):
        place.positions()


def test_planted_roots_without_what_a_family_adds(qwen_vl: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media, "chain_root", lambda salt, variant: chain_root(salt, 0))
    with pytest.raises(AssertionError):
        qwen_vl.base()


def test_planted_roots_without_a_salt(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media, "chain_root", lambda salt, variant: chain_root(b"", variant))
    with pytest.raises(AssertionError):
        place.salt()
