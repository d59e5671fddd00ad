"""What the image runs, without an image: its entry point, its health check, file systems as containers have them."""

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from configs.serve import GIB
from configs.settings import load_config
from server.doctor import devices
from server.doctor.versions import ROWS
from tests.e2e.conftest import Start
from tests.e2e.running import REPO, SMALL, RunningServer

pytestmark = pytest.mark.process

DEPLOY = REPO / "deploy"
# Everything read-only but /dev, as with `docker run --read-only`; "$@" runs there.
READ_ONLY = """
set -e
mount --make-rprivate /
for at in $(cut -d ' ' -f 5 /proc/self/mountinfo); do
  case $at in /proc* | /sys* | /dev*) ;; *) mount -o remount,bind,ro "$at" ;; esac
done
exec "$@"
"""


def can_unshare() -> bool:
    """Whether this user may make file systems read-only for one process."""
    tried = subprocess.run(["unshare", "--mount", "mount", "--make-rprivate", "/"], capture_output=True)
    return tried.returncode == 0


# ---- the entry point


def test_what_the_entry_point_runs(tmp_path: Path) -> None:
    wrong = {}
    for given, expected in (
        ([], ["serve"]),
        (["--port", "9000"], ["serve", "--port", "9000"]),
        (["serve", "--port", "9000"], ["serve", "--port", "9000"]),
        (["models"], ["models"]),
        (["pixelferry", "models"], ["models"]),
        (["pixelferry"], ["serve"]),
        (["org/name", "--port", "9000"], ["serve", "org/name", "--port", "9000"]),
        (["--version"], ["--version"]),
        (["--help"], ["--help"]),
        (["--model", "/a directory"], ["serve", "--model", "/a directory"]),
    ):
        said = run_entry_point(tmp_path, given)
        doctor = [f"doctor --faults {' '.join(expected[1:])}".strip()] if expected[0] == "serve" else []
        if said != [*doctor, " ".join(expected)]:
            wrong[" ".join(given)] = said
    assert not wrong


def run_entry_point(folder: Path, given: list[str], said: str = "$*", code: int = 0) -> list[str]:
    """Lines of `pixelferry`s that say what they were given; the doctor's ends with `code`."""
    program = f'#!/bin/sh\necho "{said}"\n[ "$1" != doctor ] || exit {code}\n'
    (folder / "pixelferry").write_text(program)
    (folder / "pixelferry").chmod(0o755)
    env = {"PATH": f"{folder}:{os.environ['PATH']}", "ASCEND_ROOT": str(folder / "Ascend")}
    ended = subprocess.run([DEPLOY / "entrypoint.sh", *given], env=env, capture_output=True, text=True, check=True)
    return ended.stdout.splitlines()


def test_the_doctor_does_not_end_the_start(tmp_path: Path) -> None:
    assert run_entry_point(tmp_path, [], code=1) == ["doctor --faults", "serve"]


def test_the_entry_point_sources_cann_and_nnal(tmp_path: Path) -> None:
    """Whose scripts read variables that nobody set, and whose last command may fail."""
    toolkit, nnal = tmp_path / "Ascend/ascend-toolkit", tmp_path / "Ascend/nnal/atb"
    toolkit.mkdir(parents=True)
    nnal.mkdir(parents=True)
    (toolkit / "set_env.sh").write_text("export CANN=$NOBODY/cann\nfalse\n")
    (nnal / "set_env.sh").write_text('export NNAL="$CANN $1"\nfalse\n')
    assert run_entry_point(tmp_path, ["models"], said="$* $CANN $NNAL") == ["models /cann /cann --cxx_abi=1"]


# ---- the image


def test_what_the_image_installs() -> None:
    """Without a chip what the project needs, with one what torch needs for it, too."""

    def listed(*extras: str) -> list[str]:
        command = [sys.executable, str(DEPLOY / "requirements.py"), *extras]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()

    assert "torch>=2.10" in listed() and not any(line.startswith("torch_npu") for line in listed())
    assert listed("npu")[: len(listed())] == listed() and "torch_npu>=2.10" in listed("npu")


def test_the_base_is_named_by_its_parts() -> None:
    """And they belong to the versions that constraints/ascend.txt pins."""
    image = (REPO / "Dockerfile").read_text(encoding="utf-8")
    assert "ARG BASE=${CHIP:+quay.io/ascend/cann:${CANN}-${CHIP}-${OS}-py${PYTHON}}\n" in image
    assert "FROM ${BASE:-python:3.11-slim}\n" in image
    assert f"\nARG CANN={ROWS[0].cann}\n" in image


def test_the_image_runs_as_uid_1000_whoever_has_it() -> None:
    """Ubuntu 24.04 has a user with this uid: a second one is refused."""
    image = (REPO / "Dockerfile").read_text(encoding="utf-8")
    assert "\nRUN getent passwd 1000 || useradd --uid 1000 " in image and "\nUSER 1000\n" in image


def test_no_directory_is_made_where_a_host_has_npu_smi_elsewhere() -> None:
    """Docker makes one for a source of a short volume that is missing."""
    compose = (DEPLOY / "docker-compose.npu.yml").read_text(encoding="utf-8")
    assert "- /usr/local/bin/npu-smi:" not in compose
    [bound] = re.findall(r"- type: bind\n +source: (\S+npu-smi\S*)\n(?: .*\n)*? +create_host_path: (\w+)", compose)
    assert bound == ("${NPU_SMI:-/usr/local/bin/npu-smi}", "false")
    for page in ("npu.md", "npu.zh.md"):
        assert "-v $(command -v npu-smi):/usr/local/bin/npu-smi:ro" in (REPO / "docs" / page).read_text("utf-8")


def test_the_entry_point_finds_what_knows_the_cards_cores() -> None:
    assert "/usr/local/dcmi/libdcmi.so" in (DEPLOY / "entrypoint.sh").read_text("utf-8")


def numbers(pattern: str, name: str) -> list[int]:
    return [int(found) for found in re.findall(pattern, (DEPLOY / name).read_text(encoding="utf-8"))]


def test_the_manifests_give_what_the_profile_of_an_atlas_takes() -> None:
    atlas = load_config(["--profile", "atlas"], {})
    [compose], [pod] = (
        numbers(r"shm_size: (\d+)gb", "docker-compose.npu.yml"),
        numbers(r"medium: Memory\n +sizeLimit: (\d+)Gi", "kubernetes/npu/pixelferry.yaml"),
    )
    assert min(compose, pod) * GIB > atlas.shm.pool_bytes
    [stop], [grace] = (
        numbers(r"stop_grace_period: (\d+)s", "docker-compose.npu.yml"),
        numbers(r"terminationGracePeriodSeconds: (\d+)", "kubernetes/npu/pixelferry.yaml"),
    )
    assert min(stop, grace) > atlas.http.drain_seconds


def test_the_compose_file_has_every_node_that_the_doctor_looks_for() -> None:
    text = (DEPLOY / "docker-compose.npu.yml").read_text(encoding="utf-8")
    assert [name for name in devices.BESIDE if f'"/dev/{name}:/dev/{name}:rwm"' not in text] == []
    for mounted in ("driver/lib64", "driver/version.info"):
        assert f"- /usr/local/Ascend/{mounted}:/usr/local/Ascend/{mounted}:ro" in text


def test_the_image_says_what_its_parts_are_called() -> None:
    image = (REPO / "Dockerfile").read_text(encoding="utf-8")
    version = re.search(r'^RELEASE = "(.+)"$', (REPO / "setup.py").read_text(encoding="utf-8"), re.MULTILINE)
    assert version and f"\nARG VERSION={version[1]}\n" in image
    assert 'org.opencontainers.image.version="$VERSION"' in image
    stamp = image.index('\nRUN echo "$REVISION" > configs/commit.txt\n')
    assert image.index("\nARG REVISION=unknown\n") < stamp < image.index("\nUSER 1000\n")
    for script in re.findall(r"/app/(deploy/\w+\.sh)", image):
        assert os.access(REPO / script, os.X_OK)
    # A flag in ENTRYPOINT would beat docker run --env.
    assert "ENV PIXELFERRY_HOST=0.0.0.0 " in image and 'ENTRYPOINT ["/app/deploy/entrypoint.sh"]' in image


# ---- the health check


def healthy(file: Path) -> bool:
    env = {"PATH": os.environ["PATH"], "PIXELFERRY_URL_FILE": str(file)}
    return subprocess.run([DEPLOY / "healthcheck.sh"], env=env, capture_output=True, timeout=60).returncode == 0


def test_the_health_check_asks_over_http(server: RunningServer, tmp_path: Path) -> None:
    (tmp_path / "url").write_text(f"{server.url}\n")
    assert healthy(tmp_path / "url")


def test_nothing_is_healthy_where_nothing_listens(tmp_path: Path) -> None:
    """A server that speaks TLS: tests/e2e/test_keys.py."""
    assert not healthy(tmp_path / "url")
    with socket.socket() as sock:
        sock.bind(("127.0.0.3", 0))
        for scheme in ("http", "https"):
            (tmp_path / "url").write_text(f"{scheme}://127.0.0.3:{sock.getsockname()[1]}\n")
            assert not healthy(tmp_path / "url")


# ---- file systems


@pytest.mark.skipif(not can_unshare(), reason="unshare --mount is not allowed here")
def test_a_read_only_machine_without_temporary_files_is_one_sentence() -> None:
    command = [sys.executable, "-m", "server", "serve", *SMALL]
    inside = ["unshare", "--mount", "bash", "-c", READ_ONLY, "-", *command]
    ended = subprocess.run(inside, cwd=REPO, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("error: no directory takes temporary files") and ended.stderr.count("\n") == 1


def test_shared_memory_that_everybody_may_enter_is_used(start: Start, shm_root: Path) -> None:
    """As Kubernetes mounts an emptyDir; and what somebody else made there first is refused in one line."""
    shared = shm_root.with_name(f"{shm_root.name}-shared")
    shared.mkdir()
    shared.chmod(0o777)
    own = shared / f"pixelferry-{os.geteuid()}"
    try:
        with start("--workers", "1", "--shm-root", str(shared)) as server:
            assert own.stat().st_mode & 0o777 == 0o700 and os.listdir(shared) == [own.name]
            assert f"shared memory          {own}, " in server.out
        assert os.listdir(shared) == []
        own.symlink_to("/")
        command = [sys.executable, "-m", "server", "serve", *SMALL, "--shm-root", str(shared)]
        ended = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=60)
        assert (ended.returncode, ended.stderr) == (1, f"error: {own} is not a directory\n")
    finally:
        shutil.rmtree(shared)
