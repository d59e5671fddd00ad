"""A server that is told a model's name: it is downloaded from a hub, named exactly, and answers under its name."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import yaml  # type: ignore[import-untyped]  # it has no types of its own

from tests.e2e.running import PROGRAM, REPO, RunningServer, running, until
from tests.e2e.test_container import READ_ONLY, can_unshare
from tests.server.hub.small_hub import COMMIT
from tests.server.hub.small_hub import running as hub_of

pytestmark = pytest.mark.process

MORE = 24 << 20  # bytes of a file that is fetched beside the model; the library counts blocks of 10 MiB


@contextmanager
def downloading(
    model: Path, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hub_name: str, *flags: str
) -> Iterator[tuple[RunningServer, threading.Event]]:
    """A server in the middle of its download, which goes on once the event is set."""
    held = threading.Event()
    files = {path.name: path.read_bytes() for path in model.iterdir()}
    name = "notes.json" if hub_name == "huggingface" else "model.safetensors"
    if name == "notes.json":
        files[name] = bytes(MORE)
    with hub_of(files, held={name: held}) as hub:
        for variable in ("HF_ENDPOINT", "MODELSCOPE_ENDPOINT"):
            monkeypatch.setenv(variable, hub.url)
        for variable in ("HF_HOME", "MODELSCOPE_CACHE"):
            monkeypatch.setenv(variable, str(tmp_path / "cache"))
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        url = tmp_path / "url"
        given = ["--hub", hub_name, "--url-file", str(url), *flags]
        try:
            with running(Path("tiny/model"), root, tmp_path / "logs", *given, wait=False) as server:
                until("it listens", url.exists, said=lambda: server.err)
                server.http.close()
                server.http = httpx.Client(base_url=url.read_text().strip(), timeout=60)
                until("half of it is there", lambda: hub.got(name), said=lambda: server.err)
                yield server, held
        finally:
            held.set()


def test_a_model_by_its_name_is_downloaded_behind_an_open_port_and_served(
    tiny_model: Path, shm_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing listened until the model was there: a probe of a start killed what downloaded it."""
    root = shm_root.with_name(f"{shm_root.name}-download")
    with downloading(tiny_model, root, tmp_path, monkeypatch, "huggingface") as (server, held):
        assert server.http.get("/health/live").status_code == 200
        assert "<title>Pixelferry</title>" in server.http.get("/").text
        until("bytes are counted", lambda: server.http.get("/health/ready").json()["bytes_done"] >= 10 << 20)
        answer = server.http.get("/health/ready")
        state = answer.json()
        assert (answer.status_code, state["status"], state["error"]["code"]) == (503, "downloading", "downloading")
        assert state["bytes_done"] < MORE <= state["bytes_total"] and int(answer.headers["retry-after"]) == 10
        asked = server.chat({"text": "Hi"})
        assert asked.status_code == 503 and f"{state['bytes_done']} of" in asked.json()["error"]["message"]
        assert server.metric("ready") == 0 and server.metric('http_requests_total{method="POST",route="x"}') == 0
        was = server.http.base_url
        server.http.close()
        held.set()
        server.wait_ready()
        assert server.url == str(was), "the same socket"
        assert server.chat({"text": "Hi"}, max_tokens=2).status_code == 200
        assert "GET /health" not in server.err
        card = server.http.get("/v1/models/tiny/model").json()
        assert card["id"] == "tiny/model" and Path(card["root"]).is_relative_to(tmp_path / "cache")
        lines = [line.split() for line in server.out.splitlines()]
        assert ["from", f"tiny/model@{COMMIT}", "(huggingface)"] in lines
        assert "torch" not in Path(f"/proc/{server.pid}/maps").read_text()


@pytest.mark.faults
@pytest.mark.parametrize(("hub_name", "number"), [("huggingface", signal.SIGTERM), ("modelscope", signal.SIGTERM),
                                                  ("huggingface", signal.SIGINT)])  # fmt: skip
def test_a_signal_ends_a_download(
    hub_name: str, number: signal.Signals, tiny_model: Path, shm_root: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if hub_name == "modelscope":
        pytest.importorskip("modelscope_hub", reason="the extra modelscope is not installed")
    root = shm_root.with_name(f"{shm_root.name}-download")
    with downloading(tiny_model, root, tmp_path, monkeypatch, hub_name) as (server, _):
        server.process.send_signal(number)
        assert server.process.wait(10) == 128 + number, server.err
        assert not (tmp_path / "url").exists() and "Traceback" not in server.err
        assert "interrupted: the next start goes on with what is missing of tiny/model" in server.err


@pytest.mark.skipif(not can_unshare(), reason="unshare --mount is not allowed here")
def test_pods_serve_what_their_job_fetched(
    tiny_model: Path, shm_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job's own command, as deploy/kubernetes has it; then a server that asks nobody, and may write nowhere.

    But in a directory for temporary files, where its URL is, as in the image. Where the checkout lies in /tmp, that is
    beside it.
    """
    manifests = yaml.safe_load_all((REPO / "deploy/kubernetes/weights/weights.yaml").read_text(encoding="utf-8"))
    [job] = [one for one in manifests if one["kind"] == "Job"]
    program, *words = job["spec"]["template"]["spec"]["containers"][0]["command"]
    command = [Path(sys.executable).with_name(program), *(word.replace(words[-1], "tiny/model") for word in words)]
    home = tmp_path / "models"
    monkeypatch.setenv("HF_HOME", str(home))
    with hub_of({path.name: path.read_bytes() for path in tiny_model.iterdir()}) as hub:
        done = subprocess.run(
            command, env={**os.environ, "HF_ENDPOINT": hub.url}, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    root = shm_root.with_name(f"{shm_root.name}-fetched")
    tmp = "/var/tmp" if REPO.is_relative_to("/tmp") else "/tmp"
    # What the test wrote lies in /tmp, too: it is seen elsewhere.
    mounts = f'mount --bind "$0" /mnt\nmount -t tmpfs tmpfs {tmp}\nmount -o remount,bind,ro /mnt\nexec "$@"'
    inside = ("unshare", "--mount", "bash", "-c", READ_ONLY.replace('exec "$@"', mounts), str(home), *PROGRAM)
    monkeypatch.setenv("HF_HOME", "/mnt")
    flags = ("--workers", "1", "--url-file", f"{tmp}/pixelferry.url")
    with running(Path("tiny/model"), root, tmp_path / "logs", *flags, program=inside) as server:
        assert Path(f"/proc/{server.pid}/root{tmp}/pixelferry.url").read_text() == f"{server.url}\n"
        mounted = Path(f"/proc/{server.pid}/mountinfo").read_text().splitlines()
        ours = [line.split() for line in mounted]
        writable = {words[4] for words in ours if words[5].startswith("rw") and words[4].split("/")[1] in ("", "mnt")}
        assert not writable, "the machine is read-only"
        assert server.chat({"text": "Hi"}, max_tokens=2).status_code == 200
        [card] = server.http.get("/v1/models").json()["data"]
        assert card["id"] == "tiny/model"
    assert not root.exists()
