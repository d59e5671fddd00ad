"""The doctor asks the driver itself, without torch_npu: here the stub."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.npu.pairs import REPO

pytestmark = pytest.mark.npu


def found(**environment: str) -> dict[str, Any]:
    """The doctor's findings by what they are about."""
    command = [sys.executable, "-m", "server", "doctor", "--device", "npu", "--json"]
    said = subprocess.run(command, cwd=REPO, env={**os.environ, **environment}, capture_output=True, text=True)
    assert said.returncode == 1, said.stderr  # there are no device nodes
    return {finding["check"]: finding for finding in json.loads(said.stdout)["findings"]}


def test_the_stub_is_asked() -> None:
    findings = found(NPU_STUB_SOC="Ascend910_9391", NPU_STUB_MIB="4096")
    assert (findings["chip"]["verdict"], findings["chip"]["found"]) == ("ok", "Ascend910_9391")
    assert (findings["NPU memory"]["verdict"], findings["NPU memory"]["found"]) == ("ok", "4.0 of 4.0 GiB free")
    assert findings["versions"]["verdict"] == "ok"


def test_another_chip_is_a_fault() -> None:
    chip = found(NPU_STUB_SOC="Ascend310P3")["chip"]
    assert (chip["verdict"], chip["found"]) == ("fail", "Ascend310P3")
