"""A SIGTERM that comes before anything is served ends the process, also as PID 1."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from configs.settings import REPO
from tests.e2e.running import children_of, until
from tests.tables import each_of

COMMAND = [sys.executable, "-m", "server"]


@pytest.mark.process
def test_the_command_line_reaches_the_subcommands() -> None:
    done = subprocess.run([*COMMAND, "--version"], cwd=REPO, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("pixelferry ")


@pytest.mark.process
@each_of(
    ("number", "words", "code"),
    [
        (signal.SIGTERM, ("models",), 128 + signal.SIGTERM),
        (signal.SIGHUP, ("models",), -signal.SIGHUP),
        (signal.SIGHUP, ("serve", "--help"), 0),  # it asks a server to read its keys again, and this one has none yet
    ],
)
def test_a_signal_that_was_held_back_counts(number: signal.Signals, words: tuple[str, ...], code: int) -> None:
    """As deploy/entrypoint.sh holds it."""
    held = (
        "import os, signal, sys\n"
        f"signal.signal({number:d}, signal.SIG_DFL)\n"  # whoever runs the tests may ignore it, as nohup does
        f"signal.pthread_sigmask(signal.SIG_BLOCK, {{{number:d}}})\n"
        f"os.kill(os.getpid(), {number:d})\n"
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    done = subprocess.run([sys.executable, "-c", held, *COMMAND, *words], cwd=REPO, capture_output=True)
    assert (done.returncode, bool(done.stdout), done.stderr) == (code, code == 0, b"")


@pytest.mark.process
def test_a_signal_while_the_rest_is_imported_ends_the_process_and_says_nothing() -> None:
    """Raised inside an import, it was an error of a schema's with a traceback, or a crash; one in forty."""
    imports = (
        "import os, signal, sys\n"
        "real = __builtins__.__import__\n"
        "def slow(name, *given, **named):\n"
        "    if name == 'msgspec':\n"
        "        try:\n"
        "            os.kill(os.getpid(), signal.SIGTERM)\n"
        "        except BaseException:\n"  # as C code does
        "            raise RuntimeError('the signal is lost') from None\n"
        "    return real(name, *given, **named)\n"
        "__builtins__.__import__ = slow\n"
        "sys.argv[1:] = ['serve', '--help']\n"
        "from server.__main__ import main\n"
        "sys.exit(main())"
    )
    done = subprocess.run([sys.executable, "-c", imports], cwd=REPO, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGTERM, "", "")


def test_a_start_imports_no_document_and_collects_garbage_afterwards() -> None:
    """FastAPI and the document's types were a second of the processor at each start; openapi_document imports them."""
    code = (
        "import gc, sys\n"
        "from server.__main__ import main\n"
        "sys.argv[1:] = ['--version']\n"
        "main()\n"
        "import server.run\n"
        "print('server.run' in sys.modules, {'fastapi', 'torch', 'PIL', 'av'} & sys.modules.keys())\n"
        "print(gc.isenabled(), gc.get_freeze_count() > 10_000)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[1:] == ["True set()", "True True"]


def can_unshare() -> bool:
    return subprocess.run(["unshare", "--pid", "--fork", "--mount-proc", "true"], capture_output=True).returncode == 0


@pytest.mark.faults
@pytest.mark.skipif(not can_unshare(), reason="this user may not make a namespace of process ids")
@each_of("seconds", [0.01, 0.1, 0.3, 0.6, 1.0, 1.8, 2.6, 4.0])
def test_a_container_ends_when_it_is_told_to(seconds: float, tmp_path: Path) -> None:
    """PID 1 is the entry point, then the server. Signals of the first three seconds were lost."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    own = {"PATH": path, "PYTHONPATH": str(REPO), "PIXELFERRY_HOST": "127.0.0.1"}
    flags = ["--port", "0", "--device", "cpu", "--kv-cache-mib", "64", "--shm-root", str(tmp_path / "shm")]
    command = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", str(REPO / "deploy/entrypoint.sh"), *flags]
    with (tmp_path / "out.txt").open("wb") as out:
        process = subprocess.Popen(command, env=os.environ | own, stdout=out, stderr=out)
    try:
        (first,) = until("PID 1 runs", lambda: children_of(process.pid))
        until("it is the entry point", lambda: b"entrypoint" in Path(f"/proc/{first}/cmdline").read_bytes())
        time.sleep(seconds)
        os.kill(first, signal.SIGTERM)
        assert process.wait(60) in (0, 128 + signal.SIGTERM), (tmp_path / "out.txt").read_text()
        assert not (tmp_path / "shm").exists()
    finally:
        process.kill()
        process.wait()
