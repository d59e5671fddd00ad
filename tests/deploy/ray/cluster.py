"""A Ray cluster of two nodes on this machine, and what can be seen of the service on it from outside."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import yaml  # type: ignore[import-untyped]  # it has no types of its own

from tests.e2e.running import REPO, stat_of, until

HEAD, SECOND, THIRD = "10.88.0.1", "10.88.0.2", "10.88.0.3"
PORT = 6390
# Not the scripts `ray` and `serve`, whose first lines name the place where the environment was made.
RAY = (sys.executable, "-m", "ray.scripts.scripts")
SERVE = (sys.executable, "-m", "ray.serve.scripts")
URL = "http://127.0.0.1:8000"
MOST_REQUESTS = 64  # that a replica holds
CPU = (
    *("--device", "cpu", "--kv-cache-mib", "64", "--threads", "1", "--workers", "1", "--drain-seconds", "10"),
    *("--max-requests", str(MOST_REQUESTS), "--allow-media-root", "examples/media", "--pulse-seconds", "5"),
)


def config_of(n_replicas: int, *flags: str) -> str:
    """As an operator's file says it; flags: further ones of each server."""
    deployments = [
        # On the head, which no test kills: streams of an ingress that dies are cut.
        {"name": "Ingress", "ray_actor_options": {"num_cpus": 0, "resources": {"front": 0.1}}},
        {"name": "Replica", "num_replicas": n_replicas, "ray_actor_options": {"num_cpus": 1}},
    ]
    application = {
        "name": "pixelferry", "import_path": "deploy.ray.app:app", "route_prefix": "/",
        "args": {"server": [*CPU, *flags]}, "deployments": deployments,
    }  # fmt: skip
    text: str = yaml.safe_dump({
        "proxy_location": "HeadOnly", "http_options": {"host": "127.0.0.1", "port": 8000},
        "applications": [application],
    })  # fmt: skip
    return text


class Cluster:
    """Two raylets with a CPU each, so that each holds one replica."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.http = httpx.Client(base_url=URL, timeout=120)

    def start(self, address: str) -> None:
        """The head, or a node that joins it."""
        place = (
            [
                *("--head", "--port", str(PORT), "--temp-dir", str(self._directory), "--resources", '{"front": 1}'),
                *("--include-dashboard", "false"),  # ten processes that nothing here asks
            ]
            if address == HEAD
            else ["--address", f"{HEAD}:{PORT}"]
        )
        command = [
            *(*RAY, "start", "--node-ip-address", address, "--num-cpus", "1", "--object-store-memory", "100000000"),
            *("--disable-usage-stats", *place),
        ]
        log = self._directory.with_name(f"start-{address}.log")  # no pipe, which what is left of a failure holds open
        for _ in range(3):  # Ray gives its raylet 30 s, which a machine that others use may not keep to
            with log.open("wb") as out:
                done = subprocess.run(command, cwd=REPO, stdout=out, stderr=out, check=False, timeout=240)
            if done.returncode == 0:
                return
            if address == HEAD:
                subprocess.run([*RAY, "stop", "--force"], cwd=REPO, check=False, capture_output=True, timeout=240)
            for raylet in self._raylets(address):
                os.kill(raylet, signal.SIGKILL)
        raise AssertionError(log.read_text()[-6000:])

    def deploy(self, n_replicas: int, *flags: str) -> None:
        """The file once more, as `serve deploy` hands it on without a dashboard. flags: further ones of each server."""
        file = self._directory.with_name("changed.yaml")
        file.write_text(config_of(n_replicas, *flags))
        command = [*SERVE, "run", "--non-blocking", "--address", f"{HEAD}:{PORT}", str(file)]
        done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr

    def servers(self) -> dict[str, int]:
        """The server's process of each replica, by the replica's id, as its command line tells them."""
        found = {}
        for entry in os.listdir("/proc"):
            if entry.isdigit() and stat_of(int(entry))[0] not in ("", "Z"):
                words = _words(int(entry))
                if "--parent-descriptor" in words and "server" in words:
                    found[words[words.index("--shm-root") + 1].rpartition("-")[2]] = int(entry)
        return found

    def actor_of(self, server: int) -> int:
        """The process of the replica that started a server."""
        return stat_of(server)[1]

    def node_of(self, server: int) -> str:
        """The address of the node that a server runs on."""
        words = _words(stat_of(self.actor_of(server))[1])
        return SECOND if any(SECOND in word for word in words) else HEAD

    def raylet(self, address: str) -> int:
        """Its process."""
        (found,) = self._raylets(address)
        return found

    def _raylets(self, address: str) -> list[int]:
        words = {int(entry): _words(int(entry)) for entry in os.listdir("/proc") if entry.isdigit()}
        flag = f"--node_ip_address={address}"
        return [pid for pid, given in words.items() if given[:1] and given[0].endswith("/raylet") and flag in given]

    def ready(self) -> bool:
        """Whether the service says that it is."""
        try:
            return self.http.get("/health/ready").status_code == 200
        except httpx.HTTPError:
            return False

    def metrics(self, name: str) -> dict[str, float]:
        """The sum over all labels of a metric, of each replica whose metrics stand on the service's page."""
        found: dict[str, float] = {}
        for line in self.http.get("/metrics").text.splitlines():
            if line.startswith(f'{name}{{replica="'):
                replica = line.split('replica="')[1].split('"')[0]
                found[replica] = found.get(replica, 0.0) + float(line.rpartition(" ")[2])
        return found

    def replicas(self) -> set[str]:
        """Those whose metrics stand on the service's page."""
        return {*self.metrics("pixelferry:ready")}

    def whole(self) -> bool:
        """Whether both replicas answer."""
        return self.ready() and len(self.replicas()) == 2


def _words(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return []


@contextmanager
def cluster_in(directory: Path) -> Iterator[Cluster]:
    """Both nodes, and the service on them, ended as an operator ends it: the application, then the nodes."""
    cluster = Cluster(directory / "ray")
    cluster.start(HEAD)
    cluster.start(SECOND)
    config = directory / "serve.yaml"
    config.write_text(config_of(2))
    log = directory / "serve.log"
    with log.open("wb") as out:
        service = subprocess.Popen(
            [*SERVE, "run", "--address", f"{HEAD}:{PORT}", str(config)], cwd=REPO, stdout=out, stderr=out
        )

    def said() -> str:
        return log.read_text()[-6000:]

    try:
        until("both replicas answer", cluster.whole, 240, 0.5, said)
        yield cluster
        service.send_signal(signal.SIGINT)
        assert service.wait(120) == 0, said()
        until("no server is left", lambda: not cluster.servers(), 30)
    finally:
        if service.poll() is None:
            service.kill()
            service.wait()
        subprocess.run([*RAY, "stop", "--force"], cwd=REPO, check=False, capture_output=True, timeout=120)
