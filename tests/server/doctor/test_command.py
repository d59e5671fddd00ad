"""`pixelferry doctor`: what it prints where, and the code that it ends with."""

import json
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from configs.serve import GIB, Device, ServeConfig
from configs.settings import REPO, load_config
from server.doctor.command import doctor, examine, look
from server.doctor.machine import Card, DiskSpace
from server.doctor.report import as_json, as_lines, as_table
from tests.server.doctor.trees import CONFIG, refusing, status, whole, with_variables, write

Captured = pytest.CaptureFixture[str]


def config(device: Device) -> ServeConfig:
    return msgspec.structs.replace(CONFIG, engine=msgspec.structs.replace(CONFIG.engine, device=device))


def test_a_whole_machine_lacks_nothing(tmp_path: Path) -> None:
    found = examine(whole(tmp_path), config("npu"))
    assert {one.verdict for one in found} == {"ok"}
    assert [one.check for one in found] == [
        "driver", "driver libraries", "CANN", "CANN parts", "CANN libraries", "versions", "NPUs", "device files",
        "rights", "card", "health", "chip", "NPU memory", "operators", "variables", "shared memory", "open files",
        "locked memory", "NUMA", "temporary files", "port", "weights",
    ]  # fmt: skip


def test_the_first_hour_shows_what_a_right_card_shows(tmp_path: Path) -> None:
    """Row by row, in both languages: in the image, on a host with eight nodes."""
    machine = whole(tmp_path)
    (tmp_path / "dev/davinci1").unlink()
    write(tmp_path, "/proc/self/status", status(1000, uid=1000, capabilities=2).replace("0-23", "0-191"))
    for n in range(8):
        write(tmp_path, f"/sys/devices/system/node/node{n}/cpulist", f"{24 * n}-{24 * n + 23}\n")
    write(tmp_path, "/usr/local/dcmi/libdcmi.so", "")
    path = f"{machine.variables['LD_LIBRARY_PATH']}:/usr/local/dcmi"
    machine = replace(machine, disk_space=lambda path: DiskSpace(total=5 * GIB, free=5 * GIB))
    image = {"PROFILE": "atlas", "DEVICE": "npu", "HOST": "0.0.0.0", "URL_FILE": "/tmp/pixelferry.url"}
    found = examine(
        with_variables(machine, {"LD_LIBRARY_PATH": path}),
        load_config([], {f"PIXELFERRY_{name}": value for name, value in image.items()}),
    )
    rows = [f"    {line}" for line in as_table(found, "npu").splitlines()[1:]]
    for page in ("npu.md", "npu.zh.md"):
        assert "\n".join(rows) in (REPO / "docs" / page).read_text(encoding="utf-8"), "\n".join(rows)


def test_a_server_of_several_ranks_is_looked_at_for_them(tmp_path: Path) -> None:
    two = msgspec.structs.replace(config("npu").engine, tensor_parallel=2)
    found = examine(whole(tmp_path), msgspec.structs.replace(CONFIG, engine=two))
    assert [one.check for one in found if one.verdict != "ok"] == []
    more = ["cards", "links", "HCCL", "HCCL ports", "user", "cores"]
    assert [one.check for one in found if one.check in more] == more
    assert not any(one.check in more for one in examine(whole(tmp_path), config("npu")))


def test_device_auto_goes_on_without_an_npu(tmp_path: Path) -> None:
    """So a fault is a warning; and where nobody meant an NPU nothing is said about one."""
    machine = whole(tmp_path)
    (tmp_path / "usr/local/Ascend/driver/version.info").unlink()
    assert [(one.verdict, one.check) for one in examine(machine, config("npu")) if one.remedy] == [("fail", "driver")]
    assert [(one.verdict, one.check) for one in examine(machine, config("auto")) if one.remedy] == [("warn", "driver")]
    bare = replace(machine, root=tmp_path / "bare", package=lambda name: None, variables={})
    (tmp_path / "bare/dev/shm").mkdir(parents=True)
    assert [one.check for one in examine(bare, config("auto"))] == [
        "NPU", "torch", "memory", "cores", "shared memory", "open files", "temporary files", "port", "weights",
    ]  # fmt: skip


def test_device_cpu_looks_at_no_npu(tmp_path: Path) -> None:
    [npu, *others] = examine(whole(tmp_path), config("cpu"))
    assert (npu.verdict, npu.found) == ("skip", "not looked at: --device cpu")
    assert [(one.check, one.verdict) for one in others] == [
        (check, "ok") for check in
        ("torch", "memory", "cores", "shared memory", "open files", "temporary files", "port", "weights")
    ]  # fmt: skip


def test_a_tree_of_files_is_looked_at(tmp_path: Path, capsys: Captured) -> None:
    whole(tmp_path)
    write(tmp_path, "/proc/self/status", status(0))
    assert doctor(["--device", "npu", "--root", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "  ok    driver            25.5.1\n" in out and "  -     chip              not asked" in out
    assert doctor(["--device", "npu", "--root", str(tmp_path), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["verdict"] == "fail"


def test_a_machine_for_a_cpu_is_good_and_faults_alone_say_nothing(capsys: Captured) -> None:
    assert doctor(["--device", "cpu", "--shm-mib", "1", "--max-connections", "1", "--port", "0"]) == 0
    assert capsys.readouterr().out.endswith("nothing is wrong\n")
    assert doctor(["--device", "cpu", "--shm-mib", "1", "--max-connections", "1", "--port", "0", "--faults"]) == 0
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


def test_a_root_that_is_missing_is_a_sentence(tmp_path: Path, capsys: Captured) -> None:
    assert doctor(["--root", str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err == f"error: --root: {tmp_path}/none is not a directory\n"


def test_where_serve_cannot_write_or_listen_is_found_by_trying(tmp_path: Path, capsys: Captured) -> None:
    """/proc takes no file of anybody's, and a port that somebody has is refused."""
    (tmp_path / "root").mkdir(mode=0o755)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        flags = ["--shm-root", "/proc/self", "--url-file", "/proc/url", "--port", port, "--device", "cpu", "--json"]
        assert doctor(flags) == 1
    found = {one["check"]: one["found"] for one in json.loads(capsys.readouterr().out)["findings"]
             if one["verdict"] == "fail"}  # fmt: skip
    assert found.keys() == {"shared memory", "URL file", "port"}
    assert found["port"] == f"127.0.0.1:{port}: Address already in use"
    assert found["shared memory"].startswith("/proc/") and found["URL file"].startswith("/proc: ")
    assert doctor(["--shm-root", str(tmp_path / "root"), "--port", "0", "--device", "cpu"]) == 0
    assert list((tmp_path / "root").iterdir()) == []  # nothing stays


def test_a_read_only_shared_memory_is_a_fault(tmp_path: Path) -> None:
    machine = refusing(whole(tmp_path), str(tmp_path / "dev/shm"))
    [(check, found)] = [(one.check, one.found) for one in examine(machine, config("cpu")) if one.verdict == "fail"]
    assert (check, found) == ("shared memory", "/dev/shm: Read-only file system")


def test_one_cause_with_what_follows_below_it(tmp_path: Path, capsys: Captured) -> None:
    """A shell in which nobody sourced CANN, and a runtime that is not found for that."""
    machine = with_variables(
        whole(tmp_path), {"ASCEND_OPP_PATH": None, "ASCEND_HOME_PATH": None, "LD_LIBRARY_PATH": ""}
    )
    (tmp_path / "usr/local/Ascend/cann").symlink_to("cann-9.1.0")
    found = examine(replace(machine, card=lambda wanted: Card(trouble="the runtime cannot be loaded")), config("npu"))
    faults = [(one.check, one.follows) for one in found if one.verdict == "fail"]
    assert faults == [("CANN", ""), ("CANN parts", "CANN"), ("CANN libraries", "CANN"), ("chip", "CANN")]
    assert as_table(found, "npu").endswith("\n1 fault")
    [line] = as_lines(found)
    assert line.endswith("From this follows what is said of CANN parts, CANN libraries, chip.")
    row = next(one for one in json.loads(as_json(found, "npu"))["findings"] if one["check"] == "chip")
    assert row["follows"] == "CANN"


def test_what_has_a_cause_of_its_own_follows_nothing(tmp_path: Path) -> None:
    machine = whole(tmp_path)
    (tmp_path / "dev/hisi_hdc").unlink()
    machine = replace(machine, package={"torch": "2.10.0"}.get)
    assert {one.check: one.follows for one in examine(machine, config("npu")) if one.verdict == "fail"} == {
        "versions": "", "device files": "",
    }  # fmt: skip


def test_settings_that_serve_refuses_are_a_finding_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ("torch", "ok") in look("cpu")[1]
    monkeypatch.setenv("PIXELFERRY_SHM_MIB", "many")
    assert look("cpu")[1] == [("settings", "skip")]


@pytest.mark.process
def test_no_torch_is_loaded() -> None:
    code = "import sys; from server.doctor.command import doctor; doctor(['--device', 'npu', '--faults']); "
    code += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
