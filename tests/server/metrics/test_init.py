"""The rest of the server takes what it needs of this package from its front door."""

import re
from pathlib import Path

REPO = Path(__file__).resolve().parents[3]
PAST = re.compile(r"^\s*(?:from|import) server\.metrics\.", re.MULTILINE)


def test_nobody_goes_past_the_front_door() -> None:
    inside = REPO / "server" / "metrics"
    found = [
        path for path in (REPO / "server").rglob("*.py") if inside not in path.parents and PAST.search(path.read_text())
    ]
    assert found == []
