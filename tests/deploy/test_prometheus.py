"""What a real Prometheus sees; where there is none, these fail and do not pass by."""

from pathlib import Path

import pytest

from tests.deploy.fire import fire
from tests.deploy.watch import watch
from tests.e2e.running import running
from tests.tiny.qwen2_vl import write_qwen2_vl


@pytest.mark.long
@pytest.mark.timeout(4500)
def test_an_hour_is_scraped_without_a_gap(tmp_path: Path) -> None:
    model = write_qwen2_vl(tmp_path / "model", tied=False)
    with running(model, tmp_path / "shm", tmp_path / "logs", "--canary-seconds", "5") as server:
        assert watch(server, tmp_path / "prometheus", minutes=60, seconds=15) == []
        server.assert_nothing_held()


@pytest.mark.long
def test_every_alert_fires_on_its_cause(tmp_path: Path) -> None:
    assert fire(tmp_path) == set()
