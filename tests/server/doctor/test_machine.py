"""What is read of a process and of files, on this machine and on a made-up one."""

import os
import resource
from dataclasses import replace
from pathlib import Path

from server.doctor.command import this_machine
from tests.server.doctor.trees import status, whole, write


def test_this_machine_is_the_one_that_we_run_on(tmp_path: Path) -> None:
    machine = this_machine()
    rights = machine.rights()
    assert rights.uid == os.geteuid() and rights.groups == {os.getegid(), *os.getgroups()}
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert machine.limits("Max open files") == tuple(None if n == resource.RLIM_INFINITY else n for n in limits)
    assert machine.package("pixelferry") and machine.package("no-such-package") is None
    found = os.statvfs(tmp_path)
    assert machine.disk_space(tmp_path).total == found.f_blocks * found.f_frsize


def test_a_file_is_open_to_its_owner_its_group_or_all(tmp_path: Path) -> None:
    machine = whole(tmp_path)
    node = tmp_path / "node"
    node.touch()
    for mode, group, expected in (
        (0o660, True, True),
        (0o640, True, False),
        (0o660, False, False),
        (0o666, False, True),
    ):
        node.chmod(mode)
        write(tmp_path, "/proc/self/status", status(os.getgid() + (not group)))
        assert machine.rights().may_use(node) is expected


def test_what_cannot_be_read_is_none(tmp_path: Path) -> None:
    machine = replace(whole(tmp_path), root=tmp_path / "nowhere")
    assert machine.text("/proc/self/limits") is None and machine.limits("Max open files") == (None, None)
