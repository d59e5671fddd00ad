"""`pixelferry doctor`: what it prints where, and the code that it ends with."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from configs.serve import Device, ServeConfig
from server.doctor.command import doctor, examine
from tests.server.doctor.trees import CONFIG, status, whole, write

Captured = pytest.CaptureFixture[str]


def config(device: Device) -> ServeConfig:
    return msgspec.structs.replace(CONFIG, engine=msgspec.structs.replace(CONFIG.engine, device=device))


def test_a_whole_machine_lacks_nothing(tmp_path: Path) -> None:
    found = examine(whole(tmp_path), config("npu"))
    assert {one.verdict for one in found} == {"ok"}
    assert [one.check for one in found] == [
        "driver", "driver libraries", "CANN", "CANN parts", "CANN libraries", "versions", "NPUs", "device files",
        "rights", "card", "health", "chip", "NPU memory", "operators", "variables", "shared memory", "open files",
        "locked memory", "NUMA",
    ]  # fmt: skip


def test_device_auto_goes_on_without_an_npu(tmp_path: Path) -> None:
    """So a fault is a warning; and where nobody meant an NPU nothing is said about one."""
    machine = whole(tmp_path)
    (tmp_path / "usr/local/Ascend/driver/version.info").unlink()
    assert [(one.verdict, one.check) for one in examine(machine, config("npu")) if one.remedy] == [("fail", "driver")]
    assert [(one.verdict, one.check) for one in examine(machine, config("auto")) if one.remedy] == [("warn", "driver")]
    bare = replace(machine, root=tmp_path / "bare", package=lambda name: None, variables={})
    (tmp_path / "bare/dev/shm").mkdir(parents=True)
    assert [one.check for one in examine(bare, config("auto"))] == ["NPU", "shared memory", "open files"]


def test_device_cpu_looks_at_no_npu(tmp_path: Path) -> None:
    [npu, *others] = examine(whole(tmp_path), config("cpu"))
    assert (npu.verdict, npu.found) == ("skip", "not looked at: --device cpu")
    assert [one.check for one in others] == ["shared memory", "open files"]


def test_a_tree_of_files_is_looked_at(tmp_path: Path, capsys: Captured) -> None:
    whole(tmp_path)
    write(tmp_path, "/proc/self/status", status(0))
    assert doctor(["--device", "npu", "--root", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "  ok    driver            25.5.1\n" in out and "  -     chip              not asked" in out
    assert doctor(["--device", "npu", "--root", str(tmp_path), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["verdict"] == "fail"


def test_a_machine_for_a_cpu_is_good_and_faults_alone_say_nothing(capsys: Captured) -> None:
    assert doctor(["--device", "cpu", "--shm-mib", "1", "--max-connections", "1"]) == 0
    assert capsys.readouterr().out.endswith("nothing is wrong\n")
    assert doctor(["--device", "cpu", "--shm-mib", "1", "--max-connections", "1", "--faults"]) == 0
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "")


def test_faults_alone_are_lines_on_stderr(tmp_path: Path, capsys: Captured) -> None:
    whole(tmp_path)
    (tmp_path / "dev/hisi_hdc").unlink()
    assert doctor(["--device", "npu", "--root", str(tmp_path), "--faults"]) == 1
    shown = capsys.readouterr()
    assert shown.out == "" and "doctor: device files: /dev/hisi_hdc is missing. Start" in shown.err


def test_a_setting_that_serve_refuses_is_refused(capsys: Captured) -> None:
    assert doctor(["--shm-mib", "many"]) == 2
    assert capsys.readouterr().err.startswith("error: --shm-mib: ")


def test_no_torch_is_loaded() -> None:
    code = "import sys; from server.doctor.command import doctor; doctor(['--device', 'npu', '--faults']); "
    code += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
