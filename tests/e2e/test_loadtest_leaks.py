"""The leak verdict on real servers: honest ones never leak, and a MiB that each step of an engine leaves is told."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from server.loadtest.command import loadtest
from server.loadtest.results.leaks import LeakCheck
from server.loadtest.results.result import read_json
from tests.e2e.running import REPO, RunningServer, running

pytestmark = pytest.mark.process

# The engine's sitecustomize.
LEAK = """
import sys
if "engine" in sys.orig_argv:
    from model.engine.engine import Engine
    kept, step = [], Engine.step
    def leaking(self):
        kept.append(b"x" * 2**20)
        return step(self)
    Engine.step = leaking
"""


def findings(server: RunningServer, path: Path, seed: int, seconds: int) -> list[LeakCheck]:
    """Of a run of mixed load in which no picture comes twice."""
    flags = ["--mix", "text:1,image:2", "--image-sizes", "320x240:2,640x480:1", "--unique-media", "--seed", str(seed)]
    load = ["--rate", "4", "--seconds", f"{seconds}s", "--max-tokens", "16", "--ignore-eos"]
    loadtest(["--quiet", "--url", server.url, "--json", str(path), *load, *flags])
    found = read_json(path).findings
    print(seed, [f"{one.name}: {one.verdict}: {one.says}" for one in found if one.name.startswith("memory")])
    return found


@pytest.fixture(scope="module")
def honest(shm_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """The demo model with its caches on, fresh."""
    with running(None, shm_root.with_name(f"{shm_root.name}-honest"), tmp_path_factory.mktemp("honest")) as server:
        yield server


@pytest.mark.long
@pytest.mark.timeout(2400)
def test_honest_minutes_are_never_a_leak(honest: RunningServer, tmp_path: Path) -> None:
    """Twenty, one behind the other: the first ones are those in which an engine grows most."""
    said = [one for seed in range(20) for one in findings(honest, tmp_path / f"{seed}.json", seed, 60)]
    assert not [one for one in said if one.verdict == "leaked"]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_honest_ten_minutes_are_no_leak(honest: RunningServer, tmp_path: Path) -> None:
    assert not [one for one in findings(honest, tmp_path / "x.json", 99, 600) if one.verdict == "leaked"]


@pytest.mark.long
def test_a_mib_in_each_engine_step_is_told(shm_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(LEAK)
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{tmp_path}:{REPO}")
        with running(None, shm_root.with_name(f"{shm_root.name}-leak"), tmp_path / "logs") as server:
            found = findings(server, tmp_path / "x.json", 0, 60)
    assert [one.name for one in found if one.verdict == "leaked"] == ["memory of process engine"]
