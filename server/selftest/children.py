"""Runs one section in a child process and hears what it says; a crash or a hang becomes a row that names its place."""

import select
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from configs.settings import REPO
from model.selftest.rows import Begun, CaseResult, Said
from server.children.processes import died_of

_DECODER = msgspec.json.Decoder(Said)
_START = Begun(section="", name="its start", seconds=300.0)
_CHUNK = 1 << 16


def run_section(section: str, command: Sequence[str], env: Mapping[str, str], hear: Callable[[Said], None]) -> None:
    """`command` writes a line of JSON for each thing that it says."""
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, cwd=REPO, env=dict(env)
    ) as process:  # which is waited for, and its pipe closed
        try:
            ended = _listen(section, process, hear)
        finally:
            process.kill()
    if ended is not None:
        hear(ended)


def _listen(section: str, process: "subprocess.Popen[bytes]", hear: Callable[[Said], None]) -> CaseResult | None:
    """To the end; the row of an end that the section did not choose."""
    assert process.stdout is not None
    begun, since, failed, rest = _START, time.monotonic(), False, b""
    while True:
        left = begun.seconds - (time.monotonic() - since)
        if left <= 0 or not select.select([process.stdout], [], [], left)[0]:
            return CaseResult(
                section=section, name=begun.name, verdict="told" if begun.may_hang else "fail",
                note=f"hangs: ended from outside after {begun.seconds:.0f} s",
            )  # fmt: skip
        chunk = process.stdout.read1(_CHUNK)  # type: ignore[attr-defined]
        if not chunk:
            break
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            said = _DECODER.decode(line)
            since = time.monotonic()
            if isinstance(said, Begun):
                begun = said
            else:
                failed = failed or (isinstance(said, CaseResult) and said.verdict == "fail")
                hear(said)
    code = process.wait()
    if code == 0 or (code > 0 and failed):
        return None
    return CaseResult(section=section, name=begun.name, verdict="fail", note=f"the process ended: {died_of(code)}")
