"""Servers to attack, and how long the measurements of `make long` take."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import omni_server, sounds, start, tiny_model
from tests.e2e.running import REPO, RunningServer
from tests.hostile.measure import FULL, SHORT, Attack, measure

__all__ = ["held", "omni_server", "sounds", "start", "tiny_model"]
TABLES = REPO / "build" / "hostile"

Held = Callable[[RunningServer, Attack], None]


@pytest.fixture
def held(request: pytest.FixtureRequest) -> Held:
    """held(server, attack): measure the attack, write its table, and fail where something was not held."""
    scale = SHORT if request.config.getoption("--hostile") == "short" else FULL

    def held(server: RunningServer, attack: Attack) -> None:
        report = measure(server, attack, scale)
        TABLES.mkdir(parents=True, exist_ok=True)
        path = Path(TABLES / f"{attack.name.replace(' ', '-')}.md")
        path.write_text(f"{report}\n")
        print(f"\n{report}")
        assert not report.problems, str(report)

    return held
