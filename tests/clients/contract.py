"""`make contract`: schemathesis asks a running server thousands of questions, and holds it to its own document.

Questions are made from the document, right ones and wrong ones. No answer may be a 5xx, have a status, a type, a header
or a body that the document does not tell, or come without the key that it says is needed.
"""

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.clients.run import BUILD
from tests.e2e.running import RunningServer, running

PROGRAMS = BUILD / "schemathesis" / "bin"
LEAST = 5000  # questions
LEAST_ANSWERED = 500  # of them with a 200, on routes that take a body
EXAMPLES = 20  # of each operation, beside those that are made from each bound: some 5,700 in all
SECONDS = 600.0  # two minutes and a half where nothing else runs
KEY = "a-key-of-this-test"
CHECKS = (
    "not_a_server_error", "status_code_conformance", "content_type_conformance", "response_headers_conformance",
    "response_schema_conformance", "unsupported_method", "allow_header_conformance", "ignored_auth",
)  # fmt: skip
COUNTED = re.compile(r"^ +(\d+) generated, (\d+) passed", re.MULTILINE)
ANSWERED = re.compile(
    r'^pixelferry:http_requests_total\{method="POST",route="([^"]+)",status="(\d+)"\} (\S+)', re.MULTILINE
)


def asked(server: RunningServer, *more: str) -> tuple[int, str]:
    """The exit code of schemathesis and what it printed."""
    command = [
        str(PROGRAMS / "schemathesis"), "run", f"{server.url}/openapi.json", "-H", f"Authorization: Bearer {KEY}",
        "--checks", ",".join(CHECKS), "--phases", "examples,coverage,fuzzing", "--max-examples", str(EXAMPLES),
        "--continue-on-failure", "--warnings", "off",
        "--generation-with-security-parameters", "false",  # a second, wrong key beside the right one is a 401
        *more,
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as directory:  # it keeps a database of failures where it runs
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=SECONDS)
    return done.returncode, done.stdout + done.stderr


def valid(document: str) -> bool:
    """Whether it is a document of OpenAPI 3.1 by the metaschema; what is wrong is printed."""
    command = [str(PROGRAMS / "openapi-spec-validator"), "--schema", "3.1", "-"]
    return subprocess.run(command, input=document, text=True, timeout=60).returncode == 0


def main(more: Sequence[str]) -> int:
    """The exit code; `more` goes to schemathesis, such as `--seed 7`."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        keys = Path(place, "keys")
        keys.write_text(KEY)
        flags = ("--workers", "1", "--max-model-len", "512", "--api-key-file", str(keys))
        with running(None, Path(f"{place}-shm"), Path(place), *flags) as server:
            server.http.headers["authorization"] = f"Bearer {KEY}"
            right = valid(server.http.get("/openapi.json").text)
            code, said = asked(server, *more)
            answers = [(int(status), float(n)) for _, status, n in ANSWERED.findall(server.http.get("/metrics").text)]
            server.assert_nothing_held()
    counted = COUNTED.search(said)
    n = int(counted[1]) if counted else 0
    good = int(sum(n for status, n in answers if status == 200))
    faults = int(sum(n for status, n in answers if status >= 500))
    right &= code == 0 and n >= LEAST and good >= LEAST_ANSWERED and not faults
    if not right:
        print(said)
    told = f"{n} questions, {good} answered, {faults} with a 5xx; {time.monotonic() - began:.0f} s"
    print(f"contract: {'works' if right else 'FAILED'}; {told}")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
