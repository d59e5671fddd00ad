"""The wheel, away from the checkout: one package that holds what the rooms hold, chats, and shadows no other."""

import re
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
PACKAGE = "pixelferry"
[RELEASE] = re.findall(r'^RELEASE = "(.+)"$', (REPO / "setup.py").read_text(encoding="utf-8"), re.MULTILINE)
FOREIGN = "whose = 'the user'\n"  # a package of a user's, which has the name of one of our rooms


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of a copy at its release's tag: a build leaves folders behind. One of an older tree did."""
    folder = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(REPO / name, folder)
    for room in (*ROOMS, PACKAGE):
        shutil.copytree(REPO / room, folder / room, ignore=NOT_SHIPPED)
    (folder / ".gitignore").write_text("build/\n*.egg-info/\n")
    git(folder, "init")
    git(folder, "add", ".")
    git(folder, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--message", "All of it")
    git(folder, "tag", f"v{RELEASE}")
    left = folder / "build" / "lib" / "server"
    left.mkdir(parents=True)
    (left / "__init__.py").write_text("")
    return folder


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made as `pip wheel .` makes it."""
    return built(source, tmp_path_factory.mktemp("made"))


def built(source: Path, into: Path) -> Path:
    pip(sys.executable, "wheel", str(source), "--no-build-isolation", "--wheel-dir", str(into))
    [path] = into.iterdir()
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with nothing but the wheel, and what it needs by a .pth to where the tests have it.

    A .pth of that place is not followed, so the checkout is on no path.
    """
    place = tmp_path_factory.mktemp("environment")
    venv.create(place, symlinks=True)
    python = place / "bin" / "python"
    (packages_of(place) / "needed.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    pip(sys.executable, "--python", str(python), "install", f"{wheel}[otel]")
    return place


def packages_of(place: Path) -> Path:
    [found] = (place / "lib").glob("python*/site-packages")
    return found


def git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", folder, *words], capture_output=True, text=True, check=True).stdout.strip()


def pip(python: str, *words: str) -> None:
    flags = ("--no-deps", "--no-index", "--quiet", "--disable-pip-version-check")
    done = subprocess.run([python, "-m", "pip", *words, *flags], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_names_the_commit_that_it_was_built_of(wheel: Path, source: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read(f"{PACKAGE}/configs/commit.txt").decode().strip() == git(source, "rev-parse", "HEAD")


def test_it_is_one_package_with_every_file_of_the_rooms(wheel: Path) -> None:
    there = {
        path.relative_to(REPO).as_posix()
        for room in (*ROOMS, PACKAGE)
        for path in (REPO / room).rglob("*")
        if path.is_file() and path.parent.name != "__pycache__"
    }
    expected = {one if one.startswith(f"{PACKAGE}/") else f"{PACKAGE}/{one}" for one in there}
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        [metadata] = [name for name in archive.namelist() if name.endswith("/METADATA")]
        about = archive.read(metadata).decode()
        [tops] = [archive.read(name) for name in archive.namelist() if name.endswith("/top_level.txt")]
    assert names == expected | {f"{PACKAGE}/configs/commit.txt"}
    assert tops == b"pixelferry\n" and "Classifier: Private :: Do Not Upload\n" in about


def test_the_version_tells_builds_apart(wheel: Path, source: Path, tmp_path: Path) -> None:
    """The tag's is the release; a later commit's, and two different changes of it, are what no index takes."""
    tree = tmp_path / "tree"
    shutil.copytree(source, tree)

    def version() -> str:
        asked = [sys.executable, "setup.py", "--quiet", "--version"]
        return subprocess.run(asked, cwd=tree, capture_output=True, text=True, check=True).stdout.split()[-1]

    assert wheel.name == f"{PACKAGE}-{RELEASE}-py3-none-any.whl" and version() == RELEASE
    (tree / "new.txt").write_text("a")
    first = version()
    (tree / "new.txt").write_text("b")
    (tree / "nowhere").symlink_to("gone")
    git(tree, "init", "nested")
    second = version()
    shutil.rmtree(tree / "nested")
    git(tree, "add", ".")
    git(tree, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--message", "More")
    head = git(tree, "rev-parse", "HEAD")
    assert version() == f"{RELEASE}+g{head[:8]}"
    dirty = f"{RELEASE}+g{git(source, 'rev-parse', 'HEAD')[:8]}.d"
    assert len({first, second}) == 2 and all(one.startswith(dirty) for one in (first, second))


def test_an_sdist_builds_the_same_wheel(source: Path, tmp_path: Path) -> None:
    """Of a commit behind the tag, whose name nothing but the sdist itself knows then."""
    tree, made = tmp_path / "tree", tmp_path / "made"
    shutil.copytree(source, tree)
    git(tree, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--allow-empty", "--message", "More")
    code = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(made)], cwd=tree, capture_output=True, check=True)
    [packed] = made.iterdir()
    shutil.unpack_archive(packed, tmp_path / "unpacked")
    [unpacked] = (tmp_path / "unpacked").iterdir()
    wheels = [built(one, tmp_path / f"wheel-of-{one.name}") for one in (tree, unpacked)]
    contents = []
    for one in wheels:
        with zipfile.ZipFile(one) as archive:
            contents.append({name: archive.read(name) for name in archive.namelist()})
    assert wheels[0].name == wheels[1].name and f"{RELEASE}+g" in wheels[0].name
    assert contents[0] == contents[1]


@pytest.fixture(scope="module")
def server(installed: Path, shm_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Started with its own name, in a user's folder, beside packages of the user's that have our rooms' names."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "pictures").mkdir()
    for room in ROOMS:
        (packages_of(installed) / room).mkdir()
        (packages_of(installed) / room / "__init__.py").write_text(FOREIGN)
    (folder / "server.py").write_text(FOREIGN)
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
    assert f"/site-packages/pixelferry/model/embedded/{EMBEDDED_NAME} " in server.out
    assert str(REPO) not in server.out + server.err


def test_its_other_commands_find_what_they_read(installed: Path, server: RunningServer, tmp_path: Path) -> None:
    def run(*words: str, program: tuple[str, ...] = ("pixelferry",)) -> str:
        command = [str(installed / "bin" / program[0]), *program[1:], *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    (tmp_path / "configs.py").write_text(FOREIGN)
    assert run("--version") == run("--version", program=("python", "-m", "pixelferry"))
    assert run("--version").startswith(f"pixelferry {RELEASE} (commit ")
    assert "Qwen2VLForConditionalGeneration" in run("models")
    run("doctor", "--device", "cpu", "--shm-mib", "1")
    run("selftest", "--device", "cpu", "--quick", "--only", "known")
    measured = tmp_path / "report.html"
    run("loadtest", "--url", server.url, "--concurrency", "1", "--requests", "2", "--html", str(measured))
    assert "<html" in measured.read_text()


def test_another_program_has_shared_memory_and_its_own_packages(installed: Path, server: RunningServer) -> None:
    """Neither its path nor the names of our rooms are touched."""
    code = """
import sys
before = list(sys.path)
from pixelferry.shm import create_shm, decode_shm_name_from_int64
assert sys.path == before and not {"shm", "configs", "server"} & sys.modules.keys()
import configs, shm
print(configs.whose, shm.whose, create_shm.__module__)
"""
    done = subprocess.run([installed / "bin" / "python", "-c", code], cwd="/", capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("the user the user pixelferry.shm.client\n", "")
