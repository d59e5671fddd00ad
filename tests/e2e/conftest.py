"""One server for all tests that leave it alone, and a maker of servers for those that do not."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from configs.settings import EMBEDDED_MODEL
from tests.e2e.audio_chats import SECONDS, WAV
from tests.e2e.running import REPO, RunningServer, running
from tests.e2e.saying import saying
from tests.tiny.qwen2_5_omni import write_qwen2_5_omni
from tests.tiny.qwen2_vl import write_qwen2_vl

__all__ = ["saying"]
NAME = "llm.example.com"  # of the server, as deploy/nginx.conf has it
Start = Callable[..., AbstractContextManager[RunningServer]]


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random checkpoint. Untied, so that its answers do not end in one repeated token."""
    return write_qwen2_vl(tmp_path_factory.mktemp("checkpoints") / "tiny", tied=False)


@pytest.fixture(scope="session")
def server(tiny_model: Path, shm_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Shared: a test that uses it must not kill anything."""
    with running(tiny_model, shm_root, tmp_path_factory.mktemp("server"), "--allowed-host", NAME) as server:
        yield server


@pytest.fixture(scope="session")
def sounds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with tone.wav, which the server `omni` may read."""
    path = tmp_path_factory.mktemp("sounds")
    (path / "tone.wav").write_bytes(WAV)
    return path


@pytest.fixture(scope="session")
def omni_server(shm_root: Path, sounds: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """One worker and a model that takes all kinds of input. Tests take it as `omni`."""
    model = write_qwen2_5_omni(tmp_path_factory.mktemp("omni") / "tiny-omni")
    root = shm_root.with_name(f"{shm_root.name}-omni")
    flags = ["--workers", "1", "--max-audio-seconds", str(SECONDS), "--allow-media-root", str(sounds)]
    with running(model, root, tmp_path_factory.mktemp("logs"), *flags) as server:
        yield server
    assert not root.exists()


@pytest.fixture
def omni(omni_server: RunningServer) -> Iterator[RunningServer]:
    """Shared: a test that uses it must not kill anything. Whatever the test asked of it, nothing is left."""
    yield omni_server
    omni_server.assert_nothing_held()


@pytest.fixture(scope="session")
def small(start: Start) -> Iterator[RunningServer]:
    """A server with little of everything, that tells its clients no shares of it. Shared.

    Room for 10,000 tokens, of which 4096 may be of media; bodies of 1 MiB, 2 MiB of shared memory, eight requests.
    """
    flags = ["--max-model-len", "10000", "--embedding-mib", "1", "--max-body-mib", "1", "--shm-mib", "2"]
    with start("--workers", "1", *flags, "--max-requests", "8", "--client-share", "off") as server:
        yield server


@pytest.fixture(scope="session")
def embedded(shm_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """The embedded model, as it is shipped; it may read the media of the examples. Shared."""
    root = shm_root.with_name(f"{shm_root.name}-embedded")
    flags = ["--workers", "1", "--allow-media-root", str(REPO / "examples" / "media")]
    with running(EMBEDDED_MODEL, root, tmp_path_factory.mktemp("embedded"), *flags) as server:
        yield server
    assert not root.exists()


@pytest.fixture(scope="session")
def start(tiny_model: Path, shm_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Start:
    """start(*flags) -> a server with a root of its own, of which nothing must be left in the end."""

    @contextmanager
    def start(
        *flags: str, root: Path | None = None, wait: bool = True, open_files: int | None = None
    ) -> Iterator[RunningServer]:
        logs = tmp_path_factory.mktemp("own")
        own = root or shm_root.with_name(f"{shm_root.name}-{logs.name}")
        with running(tiny_model, own, logs, *flags, wait=wait, open_files=open_files) as server:
            yield server
        assert not own.exists(), f"left: {sorted(path.name for path in own.iterdir())}"

    return start
