"""The rows of decode graphs on ring 0: wide tables and heads that share no keys are right, lost lengths fail."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from model.engine import runner
from model.ops.npu import _GraphAttention
from model.selftest import graphs
from model.selftest.attention_cases import BLOCK
from model.selftest.checkpoint import write_random
from model.selftest.host import MAX_MODEL_LEN
from model.selftest.rows import CaseResult, Said
from model.selftest.teller import Teller
from tests.model.ops.present import present_ops
from tests.npu.graph_double import GraphDouble
from tests.tables import each_of

pytestmark = pytest.mark.network


def rows_of(path: Path, longest: int, most: int, monkeypatch: pytest.MonkeyPatch) -> list[CaseResult]:
    for module in (runner, graphs):
        monkeypatch.setattr(module, "graph_module", lambda device: GraphDouble)
    said: list[Said] = []
    ops = present_ops("npu-bfloat16")
    graphs.check_graphs(Teller("graphs", said.append), "a model", path, ops, 2, 1, longest=longest, most=most)
    return [one for one in said if isinstance(one, CaseResult)]


def test_heads_that_share_no_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_random(tmp_path, num_key_value_heads=4, num_hidden_layers=1)
    captured, *steps = rows_of(path, MAX_MODEL_LEN, 4, monkeypatch)
    assert captured.note == "sizes 1, 2, 4" and [row.case for row in steps][1:] == ["2 sequences", "4 sequences"]
    assert all(row.verdict == "pass" and row.error == 0 for row in steps)


@each_of(("lost", "verdict"), [(0, "pass"), (BLOCK, "fail")])
def test_a_wide_table(lost: int, verdict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """lost: tokens of each sequence that an update does not say; the last of 24 blocks is then not seen."""
    real = _GraphAttention.update

    def update(self: _GraphAttention, kv_lens: Sequence[int]) -> dict[str, list[int]]:
        return real(self, [max(length - lost, 1) for length in kv_lens])

    monkeypatch.setattr(_GraphAttention, "update", update)
    _, largest = rows_of(write_random(tmp_path, num_hidden_layers=1), 24 * BLOCK, 4, monkeypatch)
    assert (largest.case, largest.verdict) == ("4 sequences", verdict)
