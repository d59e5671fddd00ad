"""A Ray cluster of three nodes on this machine, and what can be seen of the service on it from outside."""

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
START = (sys.executable, "-m", "tests.deploy.ray.start_node", "start")
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
    """Three raylets with a CPU each, so that each holds one replica at most."""

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
            *(*START, "--node-ip-address", address, "--num-cpus", "1", "--object-store-memory", "100000000"),
            *("--disable-usage-stats", "--include-log-monitor", "false", *place),
        ]
        log = self._directory.with_name(f"start-{address}.log")  # no pipe, which what is left of a failure holds open
        for _ in range(3):  # a raylet gives its agents 30 s, which a machine that others use may not keep to
            with log.open("wb") as out:
                done = subprocess.run(command, cwd=REPO, stdout=out, stderr=out, check=False, timeout=600)
            if done.returncode == 0:
                return
            if address == HEAD:
                subprocess.run([*RAY, "stop", "--force"], cwd=REPO, check=False, capture_output=True, timeout=240)
            for raylet in self._raylets(address):
                os.kill(raylet, signal.SIGKILL)
        raise AssertionError(log.read_text()[-6000:])

    def deploy(self, n_replicas: int, *flags: str) -> None:
        """The file once more, as `serve deploy` hands it on. flags: further ones of each server."""
        import ray
        from ray.serve.context import _get_global_client
        from ray.serve.schema import ServeDeploySchema

        if not ray.is_initialized():
            ray.init(f"{HEAD}:{PORT}", namespace="serve", log_to_driver=False, configure_logging=False)
        config = ServeDeploySchema.model_validate(yaml.safe_load(config_of(n_replicas, *flags)))
        _get_global_client().deploy_apps(config, _blocking=False)

    def leave(self) -> None:
        """End this process's own part: Ray ends a process whose raylet is gone, whatever it has still to say."""
        import ray

        ray.shutdown()

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
        return next((node for node in (SECOND, THIRD) if any(node in word for word in words)), HEAD)

    def raylet(self, address: str) -> int:
        """Its process."""
        (found,) = self._raylets(address)
        return found

    def start_missing(self) -> None:
        """Nodes that are not there, one after another: at once they take the same names for their sockets."""
        for node in (SECOND, THIRD):
            if not self._raylets(node):
                self.start(node)

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
    """All nodes, and a replica on them, ended as an operator ends it: the application, then the nodes."""
    cluster = Cluster(directory / "ray")
    cluster.start(HEAD)
    cluster.start_missing()  # before the service: what starts beside a raylet may keep it from its start
    config = directory / "serve.yaml"
    config.write_text(config_of(1))
    log = directory / "serve.log"
    with log.open("wb") as out:
        service = subprocess.Popen(
            # Whoever started the tests in the background ignores SIGINT, and so would it.
            ["env", "--default-signal=INT", *SERVE, "run", "--address", f"{HEAD}:{PORT}", str(config)],
            cwd=REPO, stdout=out, stderr=out,
        )  # fmt: skip

    def said() -> str:
        return log.read_text()[-6000:]

    try:
        until("a replica answers", cluster.ready, 240, 0.5, said)
        yield cluster
        service.send_signal(signal.SIGINT)
        assert service.wait(300) == 0, said()
        until("no server is left", lambda: not cluster.servers(), 30)
    finally:
        cluster.leave()
        if service.poll() is None:
            service.kill()
            service.wait()
        subprocess.run([*RAY, "stop", "--force"], cwd=REPO, check=False, capture_output=True, timeout=120)
