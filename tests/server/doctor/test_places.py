"""Temporary files, the URL's file, the port: what is said of what was tried."""

from dataclasses import replace
from pathlib import Path

import msgspec

from server.doctor import places
from server.doctor.machine import Machine
from tests.server.doctor.trees import CONFIG, refusing, whole, with_variables
from tests.server.tables import each_of

HTTP = msgspec.structs.replace(CONFIG.http, url_file=Path("/run/pixelferry/url"))


def faults(machine: Machine) -> list[tuple[str, str, str, str]]:
    return [
        (one.verdict, one.check, one.found, one.remedy) for one in places.findings(machine, HTTP) if one.verdict != "ok"
    ]


def test_a_whole_machine_has_no_fault(tmp_path: Path) -> None:
    assert [(one.verdict, one.check, one.found) for one in places.findings(whole(tmp_path), HTTP)] == [
        ("ok", "temporary files", "/tmp"), ("ok", "URL file", "/run/pixelferry/url"),
        ("ok", "port", "127.0.0.1:8000 can be had"),
    ]  # fmt: skip
    named = with_variables(whole(tmp_path), {"TMPDIR": "/scratch"})
    assert next(iter(places.findings(named, HTTP))).found == "/scratch"


@each_of(
    ("refused", "verdict", "check", "word"),
    [
        (["/tmp"], "warn", "temporary files", "they go to /var/tmp"),
        (["/tmp", "/var/tmp", "/usr/tmp", "."], "fail", "temporary files", "--tmpfs /tmp"),
        (["/run/pixelferry"], "fail", "URL file", "RuntimeDirectory="),
        (["127.0.0.1:8000"], "fail", "port", "--port"),
    ],
)
def test_what_is_refused_has_its_remedy(
    refused: list[str], verdict: str, check: str, word: str, tmp_path: Path
) -> None:
    [(said, about, found, remedy)] = faults(refusing(whole(tmp_path), *refused))
    assert (said, about) == (verdict, check) and word in f"{found} {remedy}" and "Read-only file system" in found


def test_a_tree_of_files_is_not_written_to(tmp_path: Path) -> None:
    assert [one.verdict for one in places.findings(replace(whole(tmp_path), tries=None), HTTP)] == ["skip"]
