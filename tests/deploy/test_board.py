"""The board and the alerts ask for what /metrics has, and the alerts fire on what they are for."""

import json
import subprocess

import pytest

from server.metrics import Metrics
from tests.deploy.shipped import BOARD, NAME, PROMETHEUS, alerts, panels, program, queries
from tests.server.tables import each_of

PROMTOOL = program("promtool")
PANELS = {panel["title"]: panel for panel in panels()}
QUERIES = {
    **{title: " ".join(queries(panel)) for title, panel in PANELS.items()},
    **alerts(),
}


def exposed() -> set[str]:
    """Every name that a line of /metrics may have."""
    families = list(Metrics("tiny", "1.2.3").registry.collect())
    ends = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",), "info": ("",)}
    return {family.name + end for family in families for end in ends[family.type]}


@each_of("name", QUERIES)
def test_what_is_asked_for_exists(name: str) -> None:
    asked = set(NAME.findall(QUERIES[name]))
    assert asked - exposed() - {"pixelferry:"} == set()
    assert asked or name == "PixelferryDown"


def test_every_metric_is_on_the_board() -> None:
    shown = set(NAME.findall(BOARD.read_text(encoding="utf-8")))
    others = {"pixelferry:http_request_duration_seconds", "process_cpu_seconds", "process_max_fds"}
    others |= {"process_start_time_seconds", "process_virtual_memory_bytes"}
    families = {family.name for family in Metrics("tiny", "1.2.3").registry.collect()} - others
    missing = [name for name in sorted(families) if not any(one.startswith(name) for one in shown)]
    assert missing == []


def test_panels_have_a_place_a_text_and_a_number_of_their_own() -> None:
    board = json.loads(BOARD.read_text(encoding="utf-8"))
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    cells = [
        (x, y)
        for panel in board["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells), "two panels lie on each other"
    assert max(x for x, _ in cells) == 23, "Grafana has 24 columns"
    assert len(PANELS) == len(panels()) and all(panel["description"] for panel in PANELS.values())


def test_every_alert_has_a_case_and_says_what_it_is() -> None:
    cases = (PROMETHEUS / "alerts_test.yml").read_text(encoding="utf-8")
    assert len(alerts()) > 10
    for name, text in alerts().items():
        assert f"  - name: {name}\n" in cases, name
        assert "summary:" in text and ("severity: page" in text or "severity: ticket" in text), name


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")
@each_of(
    "command",
    [("check", "config", "prometheus.yml"), ("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml")],
)
def test_prometheus_own_tool_agrees(command: tuple[str, ...]) -> None:
    said = subprocess.run([str(PROMTOOL), *command], cwd=PROMETHEUS, capture_output=True, text=True)
    assert said.returncode == 0, said.stdout + said.stderr
