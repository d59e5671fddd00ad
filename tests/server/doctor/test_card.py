"""The runtime's answer: over libraries made here, and what is said of it."""

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from configs.settings import child_env
from model.device import _SERVED_NPUS
from server.doctor import card
from server.doctor.machine import Card
from tests.server.doctor.trees import CARD, TWO_CARDS
from tests.tables import each_of

RUNTIME = """
#include <stddef.h>
#include <stdint.h>
int aclInit(const char *config) {{ return 0; }}
int aclrtGetDeviceCount(uint32_t *count) {{ *count = 2; return 0; }}
int current;
int aclrtSetDevice(int32_t number) {{ current = number; {set_device} }}
const char *aclrtGetSocName(void) {{ return "Ascend910_9391"; }}
int aclrtGetMemInfo(int kind, size_t *free, size_t *total) {{
  *free = (size_t)(60 - current) << 30; *total = (size_t)64 << 30; return kind == 1 ? 0 : 100000;
}}
{topology}
"""
# As in CANN's documentation of aclrtGetDevicesTopo.
TOPOLOGY = "int aclrtGetDevicesTopo(uint32_t a, uint32_t b, uint64_t *how) { *how = b < 2 ? 0x40 : 0; return 0; }"


def runtime(folder: Path, set_device: str = "return 0;", topology: str = TOPOLOGY) -> dict[str, str]:
    """The environment of a process that finds this library of CANN's."""
    source = folder / "runtime.c"
    source.write_text(RUNTIME.format(set_device=set_device, topology=topology))
    library = str(folder / "libascendcl.so")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, str(source)], check=True)
    return child_env({"LD_LIBRARY_PATH": str(folder)})


built = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")


@pytest.mark.process
@built
def test_the_runtime_is_asked(tmp_path: Path) -> None:
    assert card.ask(runtime(tmp_path)) == Card(count=2, soc="Ascend910_9391", free=60 << 30, total=64 << 30)


@pytest.mark.process
@built
def test_the_runtime_is_asked_for_the_card_of_each_rank(tmp_path: Path) -> None:
    """And how two of them are connected; of cards that are not there nothing is asked."""
    second = Card(soc="Ascend910_9391", free=59 << 30, total=64 << 30)
    first = Card(count=2, soc="Ascend910_9391", free=60 << 30, total=64 << 30, others=(second,), links=((0, 1, 0x40),))
    assert card.ask(runtime(tmp_path), 2) == card.ask(runtime(tmp_path), 4) == first


@pytest.mark.process
@built
def test_a_runtime_that_does_not_know_links(tmp_path: Path) -> None:
    assert card.ask(runtime(tmp_path, topology=""), 2).links == ()


@pytest.mark.process
@built
def test_the_card_of_a_further_rank_that_does_not_open(tmp_path: Path) -> None:
    answer = card.ask(runtime(tmp_path, "return number ? 507033 : 0;"), 2)
    assert answer.trouble == "" and answer.others[0].trouble == "aclrtSetDevice of CANN's runtime failed with 507033"


@pytest.mark.process
@built
def test_a_card_that_does_not_open(tmp_path: Path) -> None:
    assert (
        card.ask(runtime(tmp_path, "return 507033;")).trouble == "aclrtSetDevice of CANN's runtime failed with 507033"
    )


@pytest.mark.process
@built
def test_a_runtime_that_crashes(tmp_path: Path) -> None:
    said = card.ask(runtime(tmp_path, "return *(volatile int *)0;")).trouble
    assert said == "the process that asked ended with -11: no word"


@pytest.mark.process
@built
def test_a_runtime_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(card, "_SECONDS", 1)
    assert card.ask(runtime(tmp_path, "extern int pause(void); for (;;) pause();")).trouble == "no answer in 1 s"


@pytest.mark.process
def test_no_runtime() -> None:
    assert card.ask(child_env({"LD_LIBRARY_PATH": ""})).trouble.startswith(
        "the runtime cannot be loaded: libascendcl.so: cannot open shared object file"
    )


@each_of(
    ("answer", "verdicts", "word"),
    [
        (CARD, ["ok", "ok", "ok"], "61.0 of 64.0 GiB free"),
        (Card(count=1, soc="Ascend310P3", free=9, total=9), ["skip", "fail", "ok"], "no other chip is served"),
        (Card(count=1, soc="Ascend910B3", free=8, total=9), ["skip", "ok", "warn"], "`npu-smi info` names it"),
        (Card(trouble="aclInit failed"), ["skip", "fail"], "`npu-smi info` whether the card is well"),
        (Card(trouble="aclInit failed", health="5: Alarm"), ["warn", "fail"], "npu-smi says 5: Alarm"),
        (None, ["skip"], "not asked"),
    ],
)
def test_what_is_said_of_the_answer(answer: Card | None, verdicts: list[str], word: str) -> None:
    found = list(card.findings(answer))
    assert [one.verdict for one in found] == verdicts
    assert any(word in f"{one.found} {one.remedy}" for one in found)
    assert all(bool(one.remedy) == (one.verdict in ("warn", "fail")) for one in found)


def spoiled(**changes: object) -> Card:
    """The second of two cards, changed."""
    return replace(TWO_CARDS, others=(replace(TWO_CARDS.others[0], **changes),))  # type: ignore[arg-type]


@each_of(
    ("answer", "check", "verdict", "word"),
    [
        (TWO_CARDS, "cards", "ok", "2 of Ascend910B3, 60.0 GiB free or more"),
        (replace(TWO_CARDS, count=1), "cards", "fail", "shows 1, and --tensor-parallel 2 takes as many"),
        (spoiled(trouble="aclrtSetDevice failed"), "cards", "fail", "card 1: aclrtSetDevice failed"),
        (spoiled(soc="Ascend910B4"), "cards", "warn", "unlike: 0 Ascend910B3 of 64 GiB, 1 Ascend910B4 of 64 GiB"),
        (spoiled(free=29 << 30, total=32 << 30), "cards", "warn", "1 Ascend910B3 of 32 GiB"),
        (spoiled(free=9 << 30), "cards", "warn", "9.0 GiB free on card 1, and 61.0 on the first"),
        (TWO_CARDS, "links", "ok", "HCCS"),
        (replace(TWO_CARDS, links=((0, 1, 0x21),)), "links", "ok", "HCCS+SIO"),
        (replace(TWO_CARDS, links=((0, 1, 0x40), (0, 2, 0x08))), "links", "warn", "cards 0 and 2 by PHB"),
        (replace(TWO_CARDS, links=((0, 1, 0x80),)), "links", "warn", "what the runtime calls 128"),
        (replace(TWO_CARDS, links=()), "links", "skip", "npu-smi info -t topo"),
    ],
)
def test_what_is_said_of_the_cards_of_several_ranks(answer: Card, check: str, verdict: str, word: str) -> None:
    [found] = [one for one in card.findings(answer, 2) if one.check == check]
    assert found.verdict == verdict and word in found.found, found
    assert bool(found.remedy) == (verdict in ("warn", "fail"))


SMI = """#!/bin/sh
case "$*" in
"info -l") printf '\tTotal Count     : 2\n\tNPU ID          : 0\n\tChip Count      : 1\n\tNPU ID          : 5\n' ;;
"info -t health -i 0") printf '\tHealth Status                  : OK\n' ;;
"info -t health -i 5") %s ;;
esac
"""


@pytest.mark.process
@each_of(
    ("fifth", "health"),
    [
        ("printf '\tHealth Status                  : OK\n'", "OK"),
        ("printf '\tHealth Status                  : Alarm\n'", "5: Alarm"),
        ("sleep 60", ""),
    ],
)
def test_npu_smi_is_asked_for_each_card(
    fifth: str, health: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(card, "_HEALTH_SECONDS", 1)
    program = tmp_path / "npu-smi"
    program.write_text(SMI % fifth.replace("sleep", "exec sleep"))
    program.chmod(0o755)
    assert card._health(child_env({"PATH": f"{tmp_path}:/bin:/usr/bin"})) == health


@pytest.mark.process
def test_without_npu_smi_nothing_is_said(tmp_path: Path) -> None:
    assert card._health(child_env({"PATH": str(tmp_path)})) == ""


def test_the_chips_are_those_that_the_engine_opens() -> None:
    assert card._SERVED == _SERVED_NPUS
