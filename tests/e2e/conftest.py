"""One server for all tests that leave it alone, and a maker of servers for those that do not."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from tests.e2e.audio_chats import SECONDS, WAV
from tests.e2e.running import RunningServer, running
from tests.tiny.qwen2_5_omni import write_qwen2_5_omni
from tests.tiny.qwen2_vl import write_qwen2_vl

Start = Callable[..., AbstractContextManager[RunningServer]]


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random checkpoint. Untied, so that its answers do not end in one repeated token."""
    return write_qwen2_vl(tmp_path_factory.mktemp("checkpoints") / "tiny", tied=False)


@pytest.fixture(scope="session")
def server(tiny_model: Path, shm_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Shared: a test that uses it must not kill anything."""
    with running(tiny_model, shm_root, tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture(scope="session")
def sounds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with tone.wav, which the server `omni` may read."""
    path = tmp_path_factory.mktemp("sounds")
    (path / "tone.wav").write_bytes(WAV)
    return path


@pytest.fixture(scope="session")
def omni(shm_root: Path, sounds: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """One worker and a model that takes all kinds of input. Shared: a test that uses it must not kill anything."""
    model = write_qwen2_5_omni(tmp_path_factory.mktemp("omni") / "tiny-omni")
    root = shm_root.with_name(f"{shm_root.name}-omni")
    flags = ["--workers", "1", "--max-audio-seconds", str(SECONDS), "--allow-media-root", str(sounds)]
    with running(model, root, tmp_path_factory.mktemp("logs"), *flags) as server:
        yield server
    assert not root.exists()


@pytest.fixture
def nothing_held(omni: RunningServer) -> Iterator[None]:
    """Whatever the test asked of the server `omni`, none of it is left."""
    yield
    omni.assert_nothing_held()


@pytest.fixture
def start(tiny_model: Path, shm_root: Path, tmp_path: Path) -> Start:
    """start(*flags) -> a server of the test's own with a root of its own, of which nothing must be left in the end."""

    @contextmanager
    def start(*flags: str, root: Path | None = None, wait: bool = True) -> Iterator[RunningServer]:
        own = root or shm_root.with_name(f"{shm_root.name}-own")
        with running(tiny_model, own, tmp_path / "own", *flags, wait=wait) as server:
            yield server
        assert not own.exists(), f"left: {sorted(path.name for path in own.iterdir())}"

    return start
