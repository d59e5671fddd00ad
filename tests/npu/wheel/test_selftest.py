"""`pixelferry selftest --device npu` over the stub's NPU: what is sent back after the first hour on a server."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.npu.pairs import REPO

pytestmark = [pytest.mark.npu, pytest.mark.timeout(600)]  # the references compute every shape of the table

SECTIONS = (
    "known",
    "operators",
    "profile",
    "contexts",
    "copies",
    "matmul",
    "encoder",
    "points",
    "stale",
)  # models and graphs have tests of their own beside this


def test_every_row_of_an_npu(tmp_path: Path) -> None:
    file = tmp_path / "npu.json"
    words = ["selftest", "--device", "npu", "--quick", "--json", str(file), "--only", *SECTIONS]
    done = subprocess.run(
        [sys.executable, "-m", "server", *words],
        cwd=REPO, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=580,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(file.read_bytes())
    assert found["device"] == "npu:0" and found["verdict"] == "pass" and found["versions"]["cann"].startswith("9.1")
    assert found["versions"]["chip"].startswith("Ascend910")
    told = {row["name"]: row["note"] for row in found["rows"] if row["verdict"] == "told"}
    assert "107020" in told["replay without update"] and told["shared blocks"].startswith("refused")
    assert {row["dtype"] for row in found["rows"] if row["section"] == "operators"} == {"bfloat16"}
    assert len({row["name"] for row in found["rows"] if row["section"] == "known"}) == 17
    skipped = [row["name"] for row in found["rows"] if row["verdict"] == "skip"]
    assert skipped == ["operators and cores"]  # the stub has no profiler of CANN's
    assert len([row for row in found["rows"] if row["section"] == "contexts"]) == 6
    copies = [row for row in found["rows"] if row["section"] == "copies"]
    rates = [row["figures"]["GB/s"] for row in copies if row["verdict"] == "pass"]
    assert len(rates) == 8 and min(rates) > 0
    assert [row["note"] for row in copies if row["verdict"] == "told"] == ["early", "early"]


def test_two_cards_together(tmp_path: Path) -> None:
    """Sums and gathers, a model in two parts against the whole, and its graphs."""
    file = tmp_path / "ranks.json"
    words = ["selftest", "--device", "npu", "--quick", "--json", str(file), "--ranks", "2", "--only", "ranks"]
    done = subprocess.run(
        [sys.executable, "-m", "server", *words], cwd=REPO,
        env={**os.environ, "OMP_NUM_THREADS": "1", "NPU_STUB_CARDS": "2"}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(file.read_bytes())
    assert found["device"] == "npu:0" and {row["verdict"] for row in found["rows"]} == {"pass"}
    asked = Counter(row["name"] for row in found["rows"])
    assert asked == {"all_reduce": 3, "all_gather": 3, "random, 2 ranks": 7}
