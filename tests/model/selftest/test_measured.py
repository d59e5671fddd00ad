"""What is measured beside operators: rows are right on a CPU; another number, a lost key or a bad table fails."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import Tensor

from model.ops.collectives import Ranks
from model.ops.torch_ops import TorchOps
from model.selftest import models
from model.selftest.attention_cases import BLOCK, WIDTHS, long_cases
from model.selftest.checkpoint import write_random
from model.selftest.measured import masks, profiler, ranks
from model.selftest.measured.encoder import check_encoder
from model.selftest.measured.matmul import check_matmul
from model.selftest.models import check_given, stages
from model.selftest.operators import check_operators, specification
from model.selftest.points import check_float32
from model.selftest.rows import Begun, CaseResult, Said
from model.selftest.teller import Teller
from tests.npu import references
from tests.npu.ring0 import define_operators
from tests.tables import each_of

pytestmark = pytest.mark.network

CPU = torch.device("cpu")
# The columns of msprof, as others publish them: gitee.com/ascend/mstt and threads of vllm-ascend.
TABLE = """Device_id,OP Type,Core Type,Count,Total Time(us),Min Time(us),Avg Time(us),Max Time(us),Ratio(%)
0,SearchSorted,AI_CPU,3,1200.5,400.1,400.167,400.3,60.2
0,MatMulV2,AI_CORE,20,700.0,30.0,35.0,41.0,35.1
0,RmsNorm,AI_VECTOR_CORE,10,94.0,9.0,9.4,9.9,4.7
"""


def rows_of(run: Callable[[Teller], None]) -> list[CaseResult]:
    said: list[Said] = []
    run(Teller("s", said.append))
    return [one for one in said if isinstance(one, CaseResult)]


def verdicts(rows: Sequence[CaseResult]) -> list[str]:
    return [row.verdict for row in rows]


@each_of(("change", "verdict"), [(1.0, "pass"), (1.05, "fail")])
def test_a_layout_that_changes_numbers_fails(change: float, verdict: str) -> None:
    def cast(weight: Tensor) -> Tensor:
        return weight * change

    rows = rows_of(lambda tell: check_matmul(tell, CPU, [(64, 96)], (1, 70), 1, "NZ", cast))
    assert verdicts(rows) == [verdict] * 2 and [row.case for row in rows] == ["1 x 64 to 96, NZ", "70 x 64 to 96, NZ"]
    assert all(row.figures["TFLOP/s"] > 0 for row in rows)


@each_of(("keeps", "verdict"), [(True, "pass"), (False, "fail")])
def test_a_decode_is_the_same_without_a_mask(keeps: bool, verdict: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over ring 0; or with a mask that hides all but the first keys."""
    define_operators()
    if not keeps:
        monkeypatch.setattr(references, "_hidden", lambda mask, mode, rows, columns: torch.arange(columns) > 8)
    row = masks._compared("s", CPU, 3, 300, "3 rows", 1)
    assert row.verdict == verdict and row.figures.keys() == {"us with a mask", "us without"}


class _Short(TorchOps):
    """Its attention over a segment misses the last keys."""

    def segment_attention(
        self, query: Tensor, key: Tensor, value: Tensor, lengths: Sequence[int], scale: float | None = None
    ) -> Tensor:
        seen = key.clone()
        seen[-8:] = 0
        return super().segment_attention(query, seen, value, lengths, scale)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random(tmp_path_factory.mktemp("random"), num_hidden_layers=2, intermediate_size=352)


@each_of(("kind", "verdict"), [(TorchOps, "pass"), (_Short, "fail")], copied=("path",))
def test_an_encoder_that_misses_keys_fails(kind: type[TorchOps], verdict: str, path: Path) -> None:
    ops = kind(CPU, torch.bfloat16)
    attention, tower = rows_of(lambda tell: check_encoder(tell, path, ops, specification(), 256, 1))
    assert (attention.verdict, tower.verdict) == (verdict, "pass") and tower.microseconds


class _Narrow(TorchOps):
    """Follows no more than 200 blocks of a table."""

    def plan_attention(
        self, q_lens: Sequence[int], kv_lens: Sequence[int], block_tables: Tensor, block_size: int
    ) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        table = block_tables.clone()
        table[:, 200:] = 0
        return super().plan_attention(q_lens, kv_lens, table, block_size)


@each_of(("kind", "verdict"), [(TorchOps, "pass"), (_Narrow, "fail")])
def test_a_wide_table_that_is_cut_fails(kind: type[TorchOps], verdict: str) -> None:
    case = next(iter(long_cases(2)))
    assert str(WIDTHS[0]) in case.name and WIDTHS[-1] * BLOCK == 262_144
    [row] = rows_of(lambda tell: check_operators(tell, [kind(CPU, torch.bfloat16)], specification(), [case], repeats=1))
    assert (row.section, row.verdict) == ("s", verdict)


def test_operators_of_the_sampler_are_among_the_points() -> None:
    rows = rows_of(lambda tell: check_float32(tell, CPU, repeats=1))
    assert {"topk", "max", "index_fill_"} <= {row.name for row in rows if row.microseconds and row.verdict == "pass"}


def profiled(monkeypatch: pytest.MonkeyPatch, table: str | None) -> list[CaseResult]:
    def record(folder: Path, run: Callable[[], object]) -> None:
        run()
        if table is not None:
            (folder / "of" / "a" / "rank").mkdir(parents=True)
            (folder / "of" / "a" / "rank" / profiler.TABLE).write_text(table)

    monkeypatch.setattr(profiler, "record_profile", record)
    return rows_of(lambda tell: profiler.check_profile(tell, "npu", "a model", lambda: nullcontext(lambda: None)))


def test_a_profile_names_what_runs_on_the_ai_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    *rows, whole = profiled(monkeypatch, TABLE)
    assert [(row.name, row.case) for row in rows] == [
        ("SearchSorted", "AI_CPU"), ("MatMulV2", "AI_CORE"), ("RmsNorm", "AI_VECTOR_CORE"),
    ]  # fmt: skip
    assert rows[1].microseconds == 35 and rows[1].figures == {"calls": 20, "us in all": 700}
    assert whole.note == "on the AI CPU: SearchSorted" and whole.figures["us on AI_CPU"] == 1200.5


@each_of(("table", "verdict"), [(None, "skip"), ("Name,Time\na,1\n", "fail")])
def test_without_a_table_that_is_said(table: str | None, verdict: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert verdicts(profiled(monkeypatch, table)) == [verdict]


def test_free_memory_is_that_behind_each_stage() -> None:
    row = stages("a model", "bfloat16", [64 << 30, 63 << 30, 60 << 30, 50 << 30, 8 << 30, 7 << 30, 6 << 30])
    assert list(row.figures.values()) == [64, 60, 50, 8, 7, 6] and row.verdict == "told"


@each_of(("change", "verdict"), [(1.0, "pass"), (1.5, "fail")], copied=("path",))
def test_a_given_model_is_compared_with_the_cpu(
    change: float, verdict: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of its rows has a bound of its own, and none names its directory."""
    norm = TorchOps.rms_norm

    def changed(self: TorchOps, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return norm(self, x, weight, eps) * (change if self.dtype == torch.bfloat16 else 1.0)

    monkeypatch.setattr(TorchOps, "rms_norm", changed)
    monkeypatch.setattr(models, "AT_ONCE", (1, 2))
    said: list[Said] = []
    check_given(Teller("given", said.append), path, "cpu", 2)
    rows = [one for one in said if isinstance(one, CaseResult)]
    assert verdicts(rows) == ["skip", verdict, verdict, *["pass"] * 2]
    assert "on average" in rows[1].figures and str(path) not in repr(rows)
    assert all(one.seconds >= 900 for one in said if isinstance(one, Begun))


def test_two_ranks() -> None:
    """A process beside this one, which ends with the section; sums, gathers and logits are right."""
    rows = rows_of(lambda tell: ranks.check_ranks(tell, CPU, "cpu", 2, 1, 1))
    assert verdicts(rows) == ["pass"] * 3 + ["skip"]  # graphs
    assert [row.name for row in rows[:3]] == ["all_reduce", "all_gather", "random, 2 ranks"]
    assert all((row.microseconds or 0) > 0 for row in rows[:3]) and 0 < (rows[2].error or 0) <= ranks._TOLERANCE
    assert verdicts(rows_of(lambda tell: ranks.check_ranks(tell, CPU, "cpu", 1, 1, 1))) == ["skip"]


@each_of("call", [ranks._summed, ranks._gathered])
def test_other_numbers_of_ranks_fail(call: Callable[..., CaseResult], monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum and a gather that hold this rank alone."""
    monkeypatch.setattr(Ranks, "all_reduce", lambda self, x: x)
    monkeypatch.setattr(Ranks, "all_gather", lambda self, x: torch.cat([x, x], 1))
    row = call("a call", "4 KiB", Ranks(rank=0, n=2), CPU, 4096, 1)
    assert row.verdict == "fail" and row.note == "other numbers arrive"
