"""What `models` prints and docs/models.md shows is what the families declare."""

from dataclasses import replace

import pytest

from model.families.qwen_vl.processor import QwenVLProcessor
from model.registry import architectures, families
from server import model_table
from tokenization.chat.tool_form import HERMES
from tokenization.processor import Modality


def test_architectures_come_first_and_then_each_family() -> None:
    lines = model_table.as_text().splitlines()
    n = len(architectures())
    assert tuple(lines[:n]) == architectures() and lines[n] == ""
    assert lines[n + 1].split()[:2] == ["family", "takes"]
    assert len(lines) == n + 2 + sum(len(family.modalities) for family, _ in families())
    found = [line.split()[0] for line in lines[n + 2 :] if not line.startswith(" ")]
    assert found == [family.name for family, _ in families()]


class BothProcessor(QwenVLProcessor):
    modalities = {"image": Modality(most=1, fixed=True, expansion="rows", positions="grid"), "audio": Modality()}
    features = frozenset({"audio_in_video", "grounding"})
    tool_form = HERMES


class BlindProcessor(QwenVLProcessor):
    modalities = {}
    features = frozenset()
    structured_output = False


def test_a_declaration_is_told_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    family = replace(families()[0][0], name="new", models="A model", devices=("cpu",), processor=BothProcessor)
    blind = replace(family, name="blind", processor=BlindProcessor)
    monkeypatch.setattr(model_table, "families", lambda: [(family, ("ANew", "BNew")), (blind, ("C",))])
    assert list(model_table.rows()) == [
        ("new", "image", "at most 1", "all have one size", "a run for each row, an id after each", "step, row, column",
         "sound of videos, boxes", "yes", "hermes", "cpu"),
        ("", "audio", "any number", "by --max-audio-seconds", "one run", "as text", "", "", "", ""),
        ("blind", "text", "", "", "", "", "", "", "", "cpu"),
    ]  # fmt: skip
    page = model_table.as_markdown()
    assert "| `new` | A model | `ANew`, `BNew` |" in page and "|  | audio | any number |" in page


def test_text_stands_in_columns() -> None:
    table = model_table.as_text().splitlines()[len(architectures()) + 1 :]
    at = table[0].index("takes")
    assert {line[at - 2 : at] for line in table} == {"  "} and all(line[at] != " " for line in table)
