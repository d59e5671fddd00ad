"""One tiny checkpoint and its model for all engine tests, and a host whose segments lie in the test's own folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from model.engine.messages import SamplingParams
from model.net.multimodal import MultimodalLM
from tests.model.engine.engine_harness import GREEDY, Alone, EngineHarness, Parts, engine_at, engine_harness_at
from tests.parity.harness import load_ours
from tests.tiny.qwen2_vl import write_qwen2_vl


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_qwen2_vl(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def model(checkpoint: Path) -> MultimodalLM:
    return load_ours(checkpoint)


@pytest.fixture
def harness(checkpoint: Path, tmp_path: Path) -> Iterator[EngineHarness]:
    with engine_harness_at(checkpoint, tmp_path / "root") as found:
        yield found


@pytest.fixture(scope="session")
def known() -> dict[tuple[int, SamplingParams], list[int]]:
    """What requests gave that came alone, by the number of their parts in memory and sampling."""
    return {}


@pytest.fixture
def alone(model: MultimodalLM, harness: EngineHarness, known: dict[tuple[int, SamplingParams], list[int]]) -> Alone:
    """The tokens of a request that is alone in an engine of its own, once for all tests; parts are a module's."""

    def alone(parts: Parts, sampling: SamplingParams = GREEDY) -> list[int]:
        if (key := (id(parts), sampling)) not in known:
            engine = engine_at(model, harness.root, tokens=2048)
            harness.submit(engine, harness.prepare("alone", parts, sampling))
            harness.run(engine)
            harness.assert_clean(engine)
            assert harness.finished.pop("alone").reason == "done"
            harness.read.pop("alone", None)
            known[key] = [event.token.id for event in harness.events.pop("alone")]
        return known[key]

    return alone
