"""Driver, CANN, its libraries and the versions: each fault on a tree in which everything else is right."""

import shutil
from dataclasses import replace
from pathlib import Path

from server.doctor import ascend
from server.doctor.machine import Machine
from tests.server.doctor.trees import HOME, LINKED, PACKAGES, whole, with_variables, write
from tests.server.tables import each_of

DRIVER = "usr/local/Ascend/driver"


def faults(machine: Machine) -> list[tuple[str, str, str, str]]:
    return [(one.verdict, one.check, one.found, one.remedy) for one in ascend.findings(machine) if one.verdict != "ok"]


def test_a_whole_machine_has_no_fault(tmp_path: Path) -> None:
    found = {one.check: one.found for one in ascend.findings(whole(tmp_path))}
    assert faults(whole(tmp_path)) == []
    assert found["driver"] == "25.5.1" and found["CANN"] == f"9.1.0, {HOME}"
    assert found["versions"] == "torch_npu 2.10.0.post4, torch 2.10.0+cpu, CANN 9.1.0: a known row"


@each_of(
    ("gone", "check", "word"),
    [
        (f"{DRIVER}/version.info", "driver", "-v /usr/local/Ascend/driver/version.info:"),
        (f"{DRIVER}/lib64", "driver libraries", "-v /usr/local/Ascend/driver/lib64:"),
        (f"{HOME[1:]}/opp", "CANN parts", "ops of this chip"),
        (f"{HOME[1:]}/runtime", "CANN parts", "toolkit"),
        (f"{HOME[1:]}/lib64/{LINKED[1]}", "CANN libraries", "source /usr/local/Ascend/ascend-toolkit/set_env.sh"),
    ],
)
def test_what_is_missing_is_one_fault_with_its_remedy(tmp_path: Path, gone: str, check: str, word: str) -> None:
    machine = whole(tmp_path)
    path = tmp_path / gone
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    [(verdict, about, found, remedy)] = faults(machine)
    assert (verdict, about) == ("fail", check) and word in remedy
    assert Path(gone).name.partition(".info")[0] in found or "ASCEND_OPP_PATH" in found or "libascend_hal" in found


@each_of("version", ["25.5.0", "24.1.rc3"])
def test_an_old_driver_is_a_warning(tmp_path: Path, version: str) -> None:
    machine = whole(tmp_path)
    write(tmp_path, f"/{DRIVER}/version.info", f"Version={version}\n")
    [(verdict, check, found, remedy)] = faults(machine)
    assert (verdict, check, found) == ("warn", "driver", version) and "25.5.1" in remedy


def test_a_cann_that_nobody_sourced(tmp_path: Path) -> None:
    machine = with_variables(whole(tmp_path), {"ASCEND_HOME_PATH": None})
    (tmp_path / "usr/local/Ascend/cann").symlink_to("cann-9.1.0")
    [(verdict, check, found, remedy)] = faults(machine)
    assert (verdict, check) == ("fail", "CANN")
    assert found == "9.1.0 lies in /usr/local/Ascend/cann, but is not sourced"
    assert remedy.endswith("source /usr/local/Ascend/ascend-toolkit/set_env.sh")


def test_a_machine_without_cann(tmp_path: Path) -> None:
    machine = with_variables(whole(tmp_path), {"ASCEND_HOME_PATH": None})
    shutil.rmtree(tmp_path / HOME[1:])
    assert [(verdict, check) for verdict, check, *_ in faults(machine)] == [("fail", "CANN")]
    assert "quay.io/ascend/cann" in faults(machine)[0][3]


def test_a_home_of_cann_that_is_gone(tmp_path: Path) -> None:
    machine = with_variables(whole(tmp_path), {"ASCEND_HOME_PATH": "/opt/cann"})
    [(verdict, check, found, _)] = faults(machine)
    assert (verdict, check, found) == ("fail", "CANN", "ASCEND_HOME_PATH names /opt/cann, which is missing")


def test_a_cann_that_hides_its_version(tmp_path: Path) -> None:
    machine = whole(tmp_path)
    (tmp_path / HOME[1:] / "x86_64-linux/ascend_toolkit_install.info").unlink()
    [(verdict, check, _, remedy)] = faults(machine)
    assert (verdict, check) == ("warn", "CANN") and "ascend_toolkit_install.info" in remedy


@each_of(("text", "said"), [("", "is empty"), ("\n", "is empty"), ("package=1\n", "names no version")])
def test_a_driver_that_hides_its_version(text: str, said: str, tmp_path: Path) -> None:
    machine = whole(tmp_path)
    write(tmp_path, f"/{DRIVER}/version.info", text)
    [(verdict, check, found, remedy)] = faults(machine)
    assert (verdict, check, found) == ("warn", "driver", f"/{DRIVER}/version.info {said}") and "again" in remedy


def test_an_empty_version_file_of_cann(tmp_path: Path) -> None:
    machine = whole(tmp_path)
    write(tmp_path, f"{HOME}/x86_64-linux/ascend_toolkit_install.info", "")
    [(verdict, check, found, _)] = faults(machine)
    assert (verdict, check) == ("warn", "CANN")
    assert found == f"{HOME}/x86_64-linux/ascend_toolkit_install.info is empty"


def second(root: Path) -> str:
    """Another CANN beside the one that was sourced."""
    other = "/opt/cann-8.5.0"
    write(root, f"{other}/ascend_toolkit_install.info", "version=8.5.0\n")
    for part in ("runtime", "compiler", "opp", "lib64", "python/site-packages"):
        (root / other[1:] / part).mkdir(parents=True)
    return other


@each_of(
    ("name", "entry"),
    [("LD_LIBRARY_PATH", "lib64"), ("PYTHONPATH", "python/site-packages"), ("PATH", "compiler"),
     ("ASCEND_TOOLKIT_HOME", ""), ("TOOLCHAIN_HOME", "")],
)  # fmt: skip
def test_a_second_cann_is_found_in_any_path(name: str, entry: str, tmp_path: Path) -> None:
    machine = whole(tmp_path)
    own = machine.variables.get(name, "/usr/bin:")
    machine = with_variables(machine, {name: f"{own}:{second(tmp_path)}/{entry}"})
    [(verdict, check, found, remedy)] = faults(machine)
    assert (verdict, check) == ("fail", "CANN paths") and "no other CANN" in remedy
    assert found == f"a second CANN: {name} has /opt/cann-8.5.0, and ASCEND_HOME_PATH is {HOME}"


def test_operators_of_another_cann(tmp_path: Path) -> None:
    machine = with_variables(whole(tmp_path), {"ASCEND_OPP_PATH": f"{second(tmp_path)}/opp"})
    [(verdict, check, found, _)] = faults(machine)
    assert (verdict, check) == ("fail", "ASCEND_OPP_PATH")
    assert found == f"it is of /opt/cann-8.5.0, and ASCEND_HOME_PATH is {HOME}"


def test_one_cann_by_two_names_is_one(tmp_path: Path) -> None:
    """A link to it, and the older layout: a folder of links into another, which the paths name as well."""
    machine = whole(tmp_path)
    (tmp_path / "usr/local/Ascend/cann").symlink_to("cann-9.1.0")
    linked = {"ASCEND_OPP_PATH": "/usr/local/Ascend/cann/opp", "PATH": "/usr/local/Ascend/cann/bin:/usr/bin"}
    assert faults(with_variables(machine, linked)) == []
    latest = tmp_path / "usr/local/Ascend/ascend-toolkit/latest"
    latest.mkdir()
    for part in ("runtime", "compiler", "opp", "lib64", "x86_64-linux"):
        (latest / part).symlink_to(f"../../cann-9.1.0/{part}")
    named = with_variables(machine, {"ASCEND_HOME_PATH": "/usr/local/Ascend/ascend-toolkit/latest"})
    assert faults(named) == []


def test_traces_of_an_npu(tmp_path: Path) -> None:
    machine = whole(tmp_path)
    assert ascend.traces(machine)
    empty = replace(machine, root=tmp_path / "nowhere")
    assert ascend.traces(empty)  # torch_npu is installed
    assert not ascend.traces(replace(empty, package=lambda name: None))


@each_of(
    ("asked", "said"),
    [
        ("numpy (<2.0,>=1.19.2)", "te asks for numpy <2.0,>=1.19.2, here is 2.4.6"),
        ("numpy<=1.26", "te asks for numpy <=1.26, here is 2.4.6"),
        ("protobuf==3.20.0; python_version < '3.13'", "te asks for protobuf ==3.20.0, here is 7.36.2"),
        ("numpy>=1.19.2", ""),
        ("numpy<=2.4", ""),
        ("protobuf<8", ""),
        ("scipy<2", ""),
    ],
)
def test_packages_that_cann_asks_for(tmp_path: Path, asked: str, said: str) -> None:
    """Its own Python packages say what they need; too new a one is a warning."""
    machine = whole(tmp_path)
    write(tmp_path, f"{HOME}/python/site-packages/te-0.4.0.dist-info/METADATA", f"Name: te\nRequires-Dist: {asked}\n")
    machine = replace(machine, package={**PACKAGES, "numpy": "2.4.6", "protobuf": "7.36.2"}.get)
    rows = [(one.verdict, one.found) for one in ascend.findings(machine) if one.check == "CANN packages"]
    assert rows == ([("warn", said)] if said else [])


@each_of(
    ("folders", "soc", "verdict", "word"),
    [
        (["ascend910b/ops_nn"], "Ascend910B3", "ok", "of ascend910b"),
        (["ascend910b/ops_nn", "ascend910_93/ops_nn"], "Ascend910_9391", "ok", "of ascend910_93"),
        (["ascend910b/ops_nn"], "Ascend910_9391", "fail", "CHIP=a3"),
        (["ascend910_93/ops_nn"], "Ascend910B3", "fail", "CHIP=910b"),
        (["ascend910b/ops_oam"], "Ascend910B3", "fail", "of no chip, and this one is ascend910b"),
        ([], "Ascend910B3", "skip", "not below"),
    ],
)
def test_the_operators_are_those_of_the_chip(
    folders: list[str], soc: str, verdict: str, word: str, tmp_path: Path
) -> None:
    machine = whole(tmp_path)
    kernels = tmp_path / HOME[1:] / "opp/built-in/op_impl/ai_core/tbe/kernel"
    shutil.rmtree(kernels)
    for folder in folders:
        (kernels / folder).mkdir(parents=True)
    found = ascend.operators(machine, soc)
    assert found.verdict == verdict and word in f"{found.found} {found.remedy}"
