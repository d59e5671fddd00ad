"""One tiny checkpoint and its model for all engine tests, and a host whose segments lie in the test's own folder."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from configs.checkpoint import Checkpoint
from configs.settings import EMBEDDED_MODEL
from model.engine.messages import SamplingParams
from model.engine.sampling.forms import Forms
from model.net.multimodal import MultimodalLM
from model.registry import family_of
from tests.model.engine.engine_harness import GREEDY, Alone, EngineHarness, Parts, engine_at, engine_harness_at
from tests.parity.harness import load_ours
from tests.tiny.qwen2_vl import write_qwen2_vl
from tokenization.text.tokenizer import Tokenizer


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


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    checkpoint = Checkpoint(EMBEDDED_MODEL)
    return family_of(checkpoint).processor(checkpoint, 1 << 24).tokenizer


@pytest.fixture
def opened(tokenizer: Tokenizer) -> Iterator[Callable[..., Forms]]:
    made: list[Forms] = []

    def of(step_seconds: float = 60.0, nbytes: int = 1 << 30) -> Forms:
        made.append(Forms(EMBEDDED_MODEL, tokenizer.vocab_size, step_seconds, nbytes))
        return made[-1]

    yield of
    for forms in made:
        for form in tuple(forms._live):
            form.end()
        assert forms._server is not None
        process = forms._server._process.pid
        forms._server.close()
        assert not Path(f"/proc/{process}").exists()
