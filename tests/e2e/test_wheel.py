"""The wheel, away from the checkout: it holds what the rooms hold, and chats."""

import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from configs.settings import EMBEDDED_NAME
from tests.architecture.laws import ROOMS
from tests.e2e.running import REPO, RunningServer, running

pytestmark = pytest.mark.process

NOT_SHIPPED = shutil.ignore_patterns("__pycache__", "*.pyc")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of a copy: a build leaves folders behind."""
    folder = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(REPO / name, folder)
    for room in ROOMS:
        shutil.copytree(REPO / room, folder / room, ignore=NOT_SHIPPED)
    git(folder, "init")
    git(folder, "add", ".")
    git(folder, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--message", "All of it")
    return folder


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made as `pip wheel .` makes it."""
    made = tmp_path_factory.mktemp("made")
    pip(sys.executable, "wheel", str(source), "--no-build-isolation", "--wheel-dir", str(made))
    [path] = made.iterdir()
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with nothing but the wheel, and what it needs by a .pth to where the tests have it.

    A .pth of that place is not followed, so the checkout is on no path.
    """
    place = tmp_path_factory.mktemp("environment")
    venv.create(place, symlinks=True)
    python = place / "bin" / "python"
    asked = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = Path(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip())
    (packages / "needed.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    pip(sys.executable, "--python", str(python), "install", f"{wheel}[otel]")
    return place


def git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", folder, *words], capture_output=True, text=True, check=True).stdout.strip()


def pip(python: str, *words: str) -> None:
    flags = ("--no-deps", "--no-index", "--quiet", "--disable-pip-version-check")
    done = subprocess.run([python, "-m", "pip", *words, *flags], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_names_the_commit_that_it_was_built_of(wheel: Path, source: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read("configs/commit.txt").decode().strip() == git(source, "rev-parse", "HEAD")


def test_it_holds_every_file_of_the_rooms(wheel: Path) -> None:
    there = {
        path.relative_to(REPO).as_posix()
        for room in ROOMS
        for path in (REPO / room).rglob("*")
        if path.is_file() and path.parent.name != "__pycache__"
    }
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        [metadata] = [name for name in archive.namelist() if name.endswith("/METADATA")]
        about = archive.read(metadata).decode()
    assert names == there | {"configs/commit.txt"}
    assert "Classifier: Private :: Do Not Upload\n" in about


@pytest.fixture(scope="module")
def server(installed: Path, shm_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Started with its own name, in a folder of a stranger's."""
    folder = tmp_path_factory.mktemp("stranger")
    (folder / "pictures").mkdir()
    shutil.copy(REPO / "examples/media/red-circle.png", folder / "pictures")
    root = shm_root.with_name(f"{shm_root.name}-wheel")
    flags = ["--workers", "1", "--allow-media-root", "pictures", "--profile", "cpu"]
    command = [str(installed / "bin" / "pixelferry")]
    with running(None, root, folder / "logs", *flags, program=command, directory=folder) as server:
        yield server
    assert not root.exists()


def test_it_chats_about_a_picture_by_a_path_from_where_it_was_started(server: RunningServer) -> None:
    asked = ({"image": "pictures/red-circle.png"}, {"text": "What is in this picture?"})
    answer = server.chat(*asked, max_tokens=64, temperature=0)
    assert answer.json().get("text") == "red circle", answer.text
    assert f"/site-packages/model/embedded/{EMBEDDED_NAME} " in server.out
    assert str(REPO) not in server.out + server.err


def test_its_other_commands_find_what_they_read(installed: Path, server: RunningServer, tmp_path: Path) -> None:
    def run(*words: str) -> str:
        command = [str(installed / "bin" / "pixelferry"), *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert run("--version").startswith("pixelferry ")
    assert "Qwen2VLForConditionalGeneration" in run("models")
    run("doctor", "--device", "cpu", "--shm-mib", "1")
    measured = tmp_path / "report.html"
    run("loadtest", "--url", server.url, "--concurrency", "1", "--requests", "2", "--html", str(measured))
    assert "<html" in measured.read_text()
