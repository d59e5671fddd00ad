"""A real server as a subprocess, seen from outside: its answers, its processes and its files in shared memory."""

import base64
import io
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from PIL import Image

REPO = Path(__file__).resolve().parents[2]
READY = re.compile(r"^Pixelferry ready on (https?://\S+)$", re.MULTILINE)
MODEL_LABEL = re.compile(r',model_name="[^"]*"|model_name="[^"]*",?')
NAME = re.compile(r"[0-9a-f]{11}")  # a leased segment; an idle one ends with .idle
PROGRAM = (sys.executable, "-m", "server")
START_SECONDS = 100.0  # 3 to 6 where nothing else runs; below the limit of a test, so that the error tells what it said
# Small enough for two cores; everything that a test asserts holds for any size.
SMALL = ["--port", "0", "--device", "cpu", "--kv-cache-mib", "64", "--threads", "1"]


def until(
    what: str, true: Callable[[], Any], seconds: float = 60.0, every: float = 0.02, said: Callable[[], str] = str
) -> Any:
    """Wait until `true()` is; its value. Fails by name, with what `said()` then returns."""
    deadline = time.monotonic() + seconds
    while not (value := true()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}\n{said()}"
        time.sleep(every)
    return value


def picture(width: int, height: int, seed: int = 0, kind: str = "PNG") -> bytes:
    """An encoded picture of random blocks: sizes matter, and it costs what a real one costs."""
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, ((height + 7) // 8, (width + 7) // 8, 3), dtype=np.uint8)
    pixels = blocks.repeat(8, axis=0).repeat(8, axis=1)[:height, :width]
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def data_url(content: bytes, kind: str = "png") -> str:
    """As clients send a picture."""
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def uncached(usage: dict[str, Any]) -> dict[str, Any]:
    """What was used, less what says how much of it a cache held: asked again, that is more."""
    details = {name: n for name, n in usage["prompt_tokens_details"].items() if name != "cached_tokens"}
    return {**usage, "prompt_tokens_details": details}


class RunningServer:
    """One server process and everything that can be seen of it from outside."""

    def __init__(self, process: "subprocess.Popen[bytes]", root: Path, out: Path, err: Path) -> None:
        self.process = process
        self.root = root
        self._out = out
        self._err = err
        self.url = ""
        self.http = httpx.Client(timeout=60)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def out(self) -> str:
        """What it printed."""
        return self._out.read_text()

    @property
    def err(self) -> str:
        """What it logged."""
        return self._err.read_text()

    def wait_ready(self, seconds: float = START_SECONDS) -> None:
        """Until the first line that says so."""

        def line() -> str | None:
            assert self.process.poll() is None, f"the server ended with {self.process.returncode}:\n{said()}"
            match = READY.search(self.out)
            return match[1] if match else None

        def said() -> str:
            load, children = os.getloadavg()[0], len(children_of(self.pid))
            return f"the machine's load is {load:.1f}, the server has {children} children\n{self.out}{self.err}"

        self.url = until("ready", line, seconds, said=said)
        self.http = httpx.Client(base_url=self.url, timeout=60)

    def children(self, role: str) -> list[int]:
        """Pids of live children of a role, in the order of their start."""
        return sorted(pid for pid in children_of(self.pid) if role in command_line(pid).split("\0"))

    def chat(self, *inputs: dict[str, str], **parameters: Any) -> httpx.Response:
        """POST /chat."""
        body = {"inputs": list(inputs), "parameters": parameters}
        return self.http.post("/chat", json=body)

    def ready(self) -> int:
        """The status of /health/ready."""
        return self.http.get("/health/ready").status_code

    def metric(self, line: str) -> float:
        """The value of one line of /metrics, by its name with all labels but the model's."""
        for text in self.http.get("/metrics").text.splitlines():
            name, _, value = text.rpartition(" ")
            if MODEL_LABEL.sub("", name).removesuffix("{}") == f"pixelferry:{line}":
                return float(value)
        return 0.0

    def leased_names(self) -> list[str]:
        """Files of running leases, and path files."""
        names = os.listdir(self.root) if self.root.exists() else []
        return [name for name in names if NAME.fullmatch(name) or name.endswith(".paths")]

    def nbytes(self) -> int:
        """Bytes of every segment in the root."""
        found = 0
        for path in self.root.iterdir():
            with suppress(FileNotFoundError):  # it was given back since it was listed
                found += 0 if path.name.endswith(".owner") else path.stat().st_size
        return found

    def assert_nothing_held(self) -> None:
        """No lease, no path file, nothing mapped: of requests that ended nothing is left."""
        until("nothing leased, by the metrics", lambda: self.metric('shm_bytes{state="leased"}') == 0)
        assert self.metric("shm_path_files") == 0
        assert self.leased_names() == []
        for pid in (self.pid, *children_of(self.pid)):
            assert str(self.root) not in Path(f"/proc/{pid}/maps").read_text()

    def stop(self, number: int = signal.SIGTERM, seconds: float = 60.0) -> int:
        """Send a signal and wait for the end; the return code."""
        self.http.close()
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(seconds)


@contextmanager
def running(
    model: Path | None, root: Path, logs: Path, *flags: str, wait: bool = True, open_files: int | None = None,
    program: Sequence[str] = PROGRAM, directory: Path = REPO,
) -> Iterator[RunningServer]:  # fmt: skip
    """A server on a free port, ended by SIGTERM (by SIGKILL where that does not help) after the block.

    model: None for the embedded one; open_files: its hard limit of those; program: that serves, in that directory.
    """
    logs.mkdir(parents=True, exist_ok=True)
    out, err = logs / "out.txt", logs / "err.txt"
    named = [] if model is None else ["--model", str(model)]
    command = [*program, "serve", *named, "--shm-root", str(root)]
    if open_files is not None:
        command = ["sh", "-c", f'ulimit -n {open_files}; exec "$@"', "sh", *command]
    with out.open("wb") as out_file, err.open("wb") as err_file:
        process = subprocess.Popen([*command, *SMALL, *flags], cwd=directory, stdout=out_file, stderr=err_file)
    server = RunningServer(process, root, out, err)
    try:
        if wait:
            server.wait_ready()
        yield server
    finally:
        try:
            server.stop()
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise


def children_of(pid: int) -> list[int]:
    """Live child processes, zombies not counted."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            state, parent = stat_of(int(entry))
            if parent == pid and state != "Z":
                found.append(int(entry))
    return found


def stat_of(pid: int) -> tuple[str, int]:
    """State and parent; ("", 0) for a process that is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return "", 0
    return fields[0], int(fields[1])


def is_gone(pid: int) -> bool:
    """Whether no such process runs any more."""
    return stat_of(pid)[0] in ("", "Z")


def command_line(pid: int) -> str:
    """With NUL between the words; "" for a process that is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
