"""A network of a test's own, in which every address is this machine: nothing in it reaches another one."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
UNSHARE = ["unshare", "-nm"] if os.geteuid() == 0 else ["unshare", "-Urnm"]
NAME_SERVER = "198.51.100.53"
# What other clients would take from the environment: whoever listens to it is sent past the check.
NOBODYS_PROXY = {
    **dict.fromkeys(("http_proxy", "https_proxy", "all_proxy", "ALL_PROXY"), "http://203.0.113.9:8080"),
    "no_proxy": "127.0.0.1",  # the test's own questions
}
ROUTES = """
set -e
ip link set lo up
ip route add local 0.0.0.0/0 dev lo
ip -6 route add local ::/0 dev lo
mount --bind "$0/hosts" /etc/hosts
mount --bind "$0/resolv.conf" /etc/resolv.conf
exec "$@"
"""


def why_not() -> str:
    """Why no such network can be made here; "" where it can."""
    if shutil.which("ip") is None or shutil.which("unshare") is None:
        return "ip and unshare are not installed"
    made = subprocess.run([*UNSHARE, "ip", "link", "set", "lo", "up"], capture_output=True, text=True, check=False)
    return made.stderr.strip() or f"unshare ended with {made.returncode}" if made.returncode else ""


def run_inside(directory: Path, module: str, *args: str, given: str = "", seconds: float = 120) -> str:
    """What `python -m module args` prints in such a network. directory: for its hosts and resolv.conf."""
    (directory / "hosts").write_text("127.0.0.1 localhost\n::1 localhost\n10.0.0.9 intranet\n")
    (directory / "resolv.conf").write_text(f"nameserver {NAME_SERVER}\n")
    command = [*UNSHARE, "sh", "-c", ROUTES, str(directory), sys.executable, "-m", module, *args]
    done = subprocess.run(
        command, input=given, capture_output=True, text=True, cwd=REPO, timeout=seconds, check=False,
        env={**os.environ, **NOBODYS_PROXY},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout
