"""What each child of a server is started with: its own first message, and what all of them share."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from configs.serve import EngineConfig, LogConfig, MediaConfig, ModelConfig, ServeConfig
from model.engine.messages import LargestItem, StartEngine
from server.children import starting
from server.children.processes import Ownership
from server.metrics import Metrics
from shm import Owner
from tests.server.doubles import Scene
from tests.server.scenario import Play
from tokenization.messages import StartWorker

LARGEST = (LargestItem(kind="image", grid=(1, 2, 2), n_tokens=1, fixed=False),)


def test_each_child_has_its_first_message_and_the_owner_as_it_is(
    play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ServeConfig(
        model=ModelConfig(path=Path("/models/tiny"), served_name="tiny"), media=MediaConfig(max_items=3),
        engine=EngineConfig(max_seqs=5), log=LogConfig(level="debug"),
    )  # fmt: skip
    launched: list[tuple[str, Ownership, Any]] = []
    monkeypatch.setattr(starting, "launch", lambda *args: launched.append(args))

    async def scenario(scene: Scene) -> None:
        owner = Owner.claim(tmp_path / "own")
        try:
            metrics = Metrics("tiny", "1")
            found = starting.supervisors_of(config, owner, metrics, scene.workers, scene.engine, 77, LARGEST)
            assert [one.role for one in found] == ["worker", "text_worker", "picture_worker", "engine"]
            worker, text, pictures, engine = (one._start for one in found)
            assert worker == StartWorker(
                checkpoint="/models/tiny", media=config.media, max_model_len=77, shm_root=str(owner.root)
            )
            assert text == msgspec.structs.replace(worker, lane="text")
            assert pictures == msgspec.structs.replace(worker, lane="picture")
            assert engine == StartEngine(
                checkpoint="/models/tiny", engine=config.engine, shm_root=str(owner.root), max_model_len=77,
                largest=LARGEST,
            )  # fmt: skip
            for one in found:
                one._launch()
            assert [role for role, _, _ in launched] == ["worker", "text_worker", "picture_worker", "engine"]
            for _, owned, _ in launched:
                assert (owned.owner_name, owned.shm_root, owned.log) == (owner.name, owner.root, config.log)
        finally:
            owner.close()

    play(scenario)
