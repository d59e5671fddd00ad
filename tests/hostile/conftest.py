"""Servers to attack, and how long the measurements of `make long` take."""

from pathlib import Path
from typing import Protocol

import pytest

from tests.e2e.conftest import omni_server, sounds, start, tiny_model
from tests.e2e.running import REPO, RunningServer
from tests.hostile.measure import FULL, SHORT, Attack, Scale, measure

__all__ = ["held", "omni_server", "sounds", "start", "tiny_model"]
TABLES = REPO / "build" / "hostile"


class Held(Protocol):
    def __call__(self, server: RunningServer, attack: Attack, scale: Scale | None = None) -> None: ...


@pytest.fixture
def held(request: pytest.FixtureRequest) -> Held:
    """held(server, attack): measure the attack, write its table, and fail where something was not held.

    scale: where a test has one of its own; else what the command line says.
    """
    asked = SHORT if request.config.getoption("--hostile") == "short" else FULL

    def held(server: RunningServer, attack: Attack, scale: Scale | None = None) -> None:
        report = measure(server, attack, scale or asked)
        TABLES.mkdir(parents=True, exist_ok=True)
        path = Path(TABLES / f"{attack.name.replace(' ', '-')}.md")
        path.write_text(f"{report}\n")
        print(f"\n{report}")
        assert not report.problems, str(report)

    return held
