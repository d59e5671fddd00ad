"""Seconds add up by modality and stage, also when the stage fails."""

import time

import pytest

from tokenization.processor import StageClock


def test_seconds_add_up_per_stage() -> None:
    clock = StageClock()
    for _ in range(2):
        with clock.stage("a", "image"):
            time.sleep(0.02)
    with pytest.raises(ValueError, match="x"), clock.stage("b"):
        raise ValueError("x")
    assert 0.04 <= clock.seconds["image"]["a"] < 1 and 0 <= clock.seconds["prompt"]["b"] < 0.02
