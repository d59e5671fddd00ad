"""`make test-ray`: the tests marked `ray`, in a network and a process tree of their own, with Ray's Python."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence

from tests.network.namespace import REPO

HERE = "tests/deploy/ray"
PYTHON = REPO / "build" / "ray" / "bin" / "python"
# Ray's ports let anybody who reaches them run code: here nobody does. With its first process, the shell, the whole tree
# ends; it reaps what has lost its parent, without which Ray's workers take a killed raylet for a living one.
INSIDE = """
set -e
ip link set lo up
ip addr add 10.88.0.1/32 dev lo
ip addr add 10.88.0.2/32 dev lo
ip addr add 10.88.0.3/32 dev lo
mount -t tmpfs tmpfs /dev/shm
code=0
"$@" || code=$?
exit $code
"""
UNSHARE = ["unshare", "-nmp", "--fork", "--kill-child", "--mount-proc"]
ENVIRONMENT = {
    "PYTHONPATH": str(REPO),
    "PATH": f"{PYTHON.parent}:{os.environ['PATH']}",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "deploy.ray.proxy:middlewares",
    "RAY_worker_niceness": "0",  # as docs/scaling.md has it
    # A killed node refuses the connection at once, and is dead after three of these. What is only slow lives: on a
    # machine that others use a raylet, a worker or Serve's proxy may wait for a core longer than Ray waits for it.
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "60000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_worker_register_timeout_seconds": "300",
    "RAY_agent_register_timeout_ms": "180000",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "600",
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "60",
}


def lack() -> str:
    """What keeps the tests from running here; "" where nothing does."""
    if not (PYTHON.parent / "ray").exists():
        return "build/ray has no Ray, which wants Python 3.11"
    namespace = subprocess.run([*UNSHARE, "true"], check=False, capture_output=True, text=True)
    if os.geteuid() != 0 or namespace.returncode != 0 or shutil.which("ip") is None:
        return f"they make namespaces, which needs root, and ip: {namespace.stderr.strip()}"
    return ""


def main(args: Sequence[str]) -> int:
    """The exit code of pytest; 0 where the tests cannot run here, and a line that says so.

    args: of pytest; tests that they name are run alone.
    """
    if lacking := lack():
        print(f"SKIPPED: the tests of Ray Serve: {lacking}")
        return 0
    # Warnings are Ray's own here: what the service itself warns of is seen by `make test`.
    own = [
        "-m",
        "ray and not long",
        "-n",
        "0",
        "-o",
        "faulthandler_timeout=0",
        "-W",
        "ignore",
        "-p",
        "no:cacheprovider",
    ]
    named = any(word.startswith(HERE) for word in args)
    command = [
        *UNSHARE,
        "bash",
        "-c",
        INSIDE,
        "bash",
        str(PYTHON),
        "-m",
        "pytest",
        *own,
        *args,
        *([] if named else [HERE]),
    ]
    return subprocess.run(command, cwd=REPO, env={**os.environ, **ENVIRONMENT}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
