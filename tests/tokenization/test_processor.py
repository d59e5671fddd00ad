"""Seconds add up by modality and stage, also when the stage fails."""

import time

import pytest

from tokenization.processor import StageClock


def test_seconds_add_up_per_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    clock = StageClock()
    for _ in range(2):
        with clock.stage("a", "image"):
            now += 0.5
    with pytest.raises(ValueError, match="x"), clock.stage("b"):
        now += 0.25
        raise ValueError("x")
    assert clock.seconds == {"image": {"a": 1.0}, "prompt": {"b": 0.25}}
