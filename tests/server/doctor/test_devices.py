"""Device nodes: which there are, whether we may open them, which one the server takes."""

import os
from pathlib import Path

from server.doctor import devices
from server.doctor.machine import Machine
from tests.server.doctor.trees import OURSELVES, status, whole, with_variables, write
from tests.server.tables import each_of


def faults(machine: Machine) -> list[tuple[str, str, str, str]]:
    return [(one.verdict, one.check, one.found, one.remedy) for one in devices.findings(machine) if one.verdict != "ok"]


def test_a_whole_machine_has_no_fault(tmp_path: Path) -> None:
    found = {one.check: one.found for one in devices.findings(whole(tmp_path))}
    assert found == {
        "NPUs": "2: davinci0, davinci1",
        "device files": "davinci_manager, devmm_svm, hisi_hdc",
        "rights": f"every node opens; we are uid {OURSELVES} in the groups {os.getgid()}, {OURSELVES}",
        "card": "the first of 2; ASCEND_RT_VISIBLE_DEVICES chooses another one",
    }


def test_no_card(tmp_path: Path) -> None:
    machine = whole(tmp_path)
    for name in ("davinci0", "davinci1"):
        (tmp_path / "dev" / name).unlink()
    [(verdict, check, _, remedy)] = faults(machine)
    assert (verdict, check) == (
        "fail",
        "NPUs",
    ) and "--device /dev/davinci0 (an A3 wants /dev/davinci0:/dev/davinci0:rwm)" in remedy
    [(_, _, found, remedy)] = faults(with_variables(machine, {"ASCEND_VISIBLE_DEVICES": "void"}))
    assert found.startswith("ASCEND_VISIBLE_DEVICES=void") and "such as 0" in remedy


def test_a_node_beside_the_cards_is_missing(tmp_path: Path) -> None:
    machine = whole(tmp_path)
    (tmp_path / "dev/devmm_svm").unlink()
    [(verdict, check, found, remedy)] = faults(machine)
    assert (verdict, check, found) == ("fail", "device files", "/dev/devmm_svm is missing")
    assert "--device /dev/devmm_svm;" in remedy
    (tmp_path / "dev/hisi_hdc").unlink()
    assert "--device /dev/devmm_svm --device /dev/hisi_hdc;" in faults(machine)[0][3]


def test_another_group_owns_the_nodes(tmp_path: Path) -> None:
    machine = whole(tmp_path)
    write(tmp_path, "/proc/self/status", status(os.getgid() + 1))
    [(verdict, check, found, remedy)] = faults(machine)
    assert (verdict, check) == ("fail", "rights") and "mode 0660" in found
    assert f"--group-add {os.getgid()}," in remedy and f"supplementalGroups: [{os.getgid()}]" in remedy


@each_of(("capabilities", "n"), [(0, 1), (1 << 1, 0)], ids=["root without any", "CAP_DAC_OVERRIDE"])
def test_root_opens_what_its_capabilities_let_it(tmp_path: Path, capabilities: int, n: int) -> None:
    machine = whole(tmp_path)
    write(tmp_path, "/proc/self/status", status(os.getgid() + 1, capabilities=capabilities))
    assert len(faults(machine)) == n


def test_the_owner_itself_opens_its_node(tmp_path: Path) -> None:
    machine = whole(tmp_path)
    for path in (tmp_path / "dev").iterdir():
        if path.is_file():
            path.chmod(0o600)
    assert [check for _, check, *_ in faults(machine)] == ["rights"]
    write(tmp_path, "/proc/self/status", status(uid=os.geteuid()))
    assert faults(machine) == []


@each_of(
    ("asked", "verdict", "word"),
    [
        ("1", "ok", "ASCEND_RT_VISIBLE_DEVICES=1"),
        ("2", "fail", "names 2, and there are cards 0 to 1"),
        ("0,5", "fail", "names 5,"),
        ("", "fail", "names nothing"),
        ("all", "fail", "names all"),
        ("0,1", "warn", "names 2 cards, and a server uses the first"),
    ],
)
def test_the_card_that_is_taken(tmp_path: Path, asked: str, verdict: str, word: str) -> None:
    machine = with_variables(whole(tmp_path), {"ASCEND_RT_VISIBLE_DEVICES": asked})
    [card] = [one for one in devices.findings(machine) if one.check == "card"]
    assert card.verdict == verdict and word in card.found and bool(card.remedy) == (verdict != "ok")


@each_of(
    ("asked", "wanted", "verdict", "word"),
    [
        (None, 4, "fail", "--tensor-parallel 4 takes as many cards, and a server sees 2"),
        (None, 2, "ok", "the first 2 of 2"),
        ("0,1", 2, "ok", "=0,1"),
        ("1", 2, "fail", "a server sees 1"),
        ("1,0", 2, "fail", "CANN takes numbers that rise"),
        ("0,0", 2, "fail", "CANN takes numbers that rise"),
        ("0, 1", 2, "fail", "CANN takes numbers that rise"),
    ],
)
def test_an_engine_of_several_ranks_takes_as_many_cards(
    tmp_path: Path, asked: str | None, wanted: int, verdict: str, word: str
) -> None:
    machine = whole(tmp_path)
    (tmp_path / "dev" / "davinci1").touch()
    if asked is not None:
        machine = with_variables(machine, {"ASCEND_RT_VISIBLE_DEVICES": asked})
    [card] = [one for one in devices.findings(machine, wanted) if one.check == "card"]
    assert card.verdict == verdict and word in card.found and bool(card.remedy) == (verdict != "ok")
