"""One tiny checkpoint for every test of this room, and the stage on which scenes are played."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from tests.server.doubles import Scene, tokenizer_of
from tests.tiny.qwen2_vl import write_qwen2_vl
from tokenization.text.bpe import BPETokenizer


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_qwen2_vl(tmp_path_factory.mktemp("checkpoints") / "tiny")


@pytest.fixture(scope="session")
def tokenizer(tiny_checkpoint: Path) -> BPETokenizer:
    return tokenizer_of(tiny_checkpoint)


@pytest.fixture
def play(tokenizer: BPETokenizer, tmp_path: Path) -> Any:
    """Run one scene on a loop of its own; afterwards nothing is leased, whatever happened in it."""

    def play(scenario: Callable[[Scene], Coroutine[Any, Any, None]], **fields: Any) -> None:
        async def run() -> None:
            scene = Scene(tokenizer, tmp_path / "shm", **fields)
            try:
                await scenario(scene)
                await asyncio.wait_for(scene.segments.idle(), 60)
                stats = await scene.stats()
                assert (stats.leased_bytes, stats.leases, stats.path_files) == (0, 0, 0)
                assert scene.service.admission.n_active == 0
                assert not scene.segments.failed.done()
            finally:
                scene.close()

        asyncio.run(run())
        assert not (tmp_path / "shm").exists()

    return play
