"""What a checkpoint asks for and does not get is named once, with what gives it."""

import pytest

from configs.checkpoint import ConfigSection
from server.requests.unapplied import warn_of_unapplied


def warnings_of(caplog: pytest.LogCaptureFixture, **values: object) -> list[str]:
    caplog.clear()
    warn_of_unapplied(ConfigSection(values, "generation_config.json"))
    return [record.message for record in caplog.records]


def test_what_changes_answers_is_named(caplog: pytest.LogCaptureFixture) -> None:
    assert warnings_of(caplog, typical_p=0.9, num_beams=1, max_new_tokens=512, suppress_tokens=[3]) == [
        "generation_config.json: max_new_tokens = 512 is not applied: a request's max_tokens does this",
        "generation_config.json: suppress_tokens = [3] is not applied: a request's logit_bias of -100 does this",
        "generation_config.json: typical_p = 0.9 is not applied: not supported yet",
    ]


def test_what_changes_nothing_is_not(caplog: pytest.LogCaptureFixture) -> None:
    assert not warnings_of(caplog, typical_p=1, num_beams=1.0, max_length=20, suppress_tokens=[], stop_strings=None)
    assert not warnings_of(caplog, early_stopping=False, sequence_bias={}, no_repeat_ngram_size=0, top_k=7)
