"""A real Prometheus with the shipped configuration, in front of one server, and what can be asked of it."""

import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.deploy.shipped import PROMETHEUS, program
from tests.e2e.nginx import free_port
from tests.e2e.running import until


class Prometheus:
    """One that runs, by its HTTP interface."""

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=url, timeout=30)

    def query(self, text: str) -> list[dict[str, Any]]:
        """The series of an instant query."""
        answer = self._http.get("/api/v1/query", params={"query": text}).json()
        assert answer["status"] == "success", (text, answer)
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found

    def numbers(self, text: str) -> list[float]:
        """Of an instant query, without what is no number."""
        values = [float(series["value"][1]) for series in self.query(text)]
        return [value for value in values if value == value]

    def scrapes(self, minutes: float) -> list[tuple[float, bool]]:
        """When each scrape of the last minutes was, and whether it succeeded."""
        (series,) = self.query(f'up{{job="pixelferry"}}[{int(minutes * 60) + 60}s]')
        return [(float(moment), value == "1") for moment, value in series["values"]]

    def firing(self) -> set[str]:
        """Alerts, by name."""
        found = self._http.get("/api/v1/alerts").json()["data"]["alerts"]
        return {alert["labels"]["alertname"] for alert in found if alert["state"] == "firing"}

    def annotations(self, name: str) -> dict[str, str]:
        """Of the first alert of that name that is there."""
        found = self._http.get("/api/v1/alerts").json()["data"]["alerts"]
        return next((alert["annotations"] for alert in found if alert["labels"]["alertname"] == name), {})

    def rules(self) -> dict[str, str]:
        """The health of each alert's rule."""
        groups = self._http.get("/api/v1/rules").json()["data"]["groups"]
        return {rule["name"]: rule["health"] for group in groups for rule in group["rules"]}


@contextmanager
def watching(
    target: str, at: Path, seconds: int, change: Callable[[str], str] = lambda rules: rules
) -> Iterator[Prometheus]:
    """Scrapes `target` (host:port) every so many seconds, with the shipped rules as `change` makes them."""
    config = (PROMETHEUS / "prometheus.yml").read_text(encoding="utf-8")
    assert config.count("localhost:8000") == 1 and config.count("interval: 15s") == 2
    config = config.replace("localhost:8000", target).replace("interval: 15s", f"interval: {seconds}s")
    at.mkdir(parents=True, exist_ok=True)
    (at / "prometheus.yml").write_text(config)
    (at / "alerts.yml").write_text(change((PROMETHEUS / "alerts.yml").read_text(encoding="utf-8")))
    port, name = free_port(), program("prometheus")
    assert name, "prometheus is neither on the path nor in PROMETHEUS_BIN"
    command = [
        name, f"--config.file={at / 'prometheus.yml'}", f"--storage.tsdb.path={at / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn",
    ]  # fmt: skip
    with (at / "log.txt").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        url = f"http://127.0.0.1:{port}"
        until("Prometheus is ready", lambda: answers(f"{url}/-/ready"), 60, every=0.2)
        yield Prometheus(url)
    finally:
        process.terminate()
        process.wait(30)


def answers(url: str) -> bool:
    try:
        return httpx.get(url).status_code == 200
    except httpx.TransportError:
        return False


def at_once(rules: str) -> str:
    """Rules that look back 30 s instead of minutes and wait for nothing."""
    return re.sub(r"\[\d+m\]", "[30s]", re.sub(r"for: \d+m", "for: 0s", rules))
