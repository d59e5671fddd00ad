"""What deploy/ ships for those who watch a server: the queries of its board, its alerts, and what runs them."""

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
BOARD = REPO / "deploy" / "grafana" / "pixelferry.json"
PROMETHEUS = REPO / "deploy" / "prometheus"
NAME = re.compile(r"pixelferry:\w+|\bprocess_\w+")
_PLACES = f"{os.environ['PATH']}:{os.environ.get('PROMETHEUS_BIN', '')}"


def program(name: str) -> str | None:
    """promtool or prometheus, on the path or in the directory that PROMETHEUS_BIN names."""
    return shutil.which(name, path=_PLACES)


def panels() -> list[dict[str, Any]]:
    """Of the board, without the rows that group them."""
    board: dict[str, Any] = json.loads(BOARD.read_text(encoding="utf-8"))
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def queries(panel: dict[str, Any], window: str = "1m") -> list[str]:
    """As Grafana would ask them for every server, rates over `window`."""
    asked = []
    for target in panel["targets"]:
        text = target["expr"].replace("$instance", ".*").replace("$__rate_interval", window)
        asked.append(text.replace("$__range", window))
    return asked


def alerts() -> dict[str, str]:
    """The text of each rule, by its name."""
    text = (PROMETHEUS / "alerts.yml").read_text(encoding="utf-8")
    return {part.split("\n", 1)[0].strip(): part for part in text.split("- alert:")[1:]}
