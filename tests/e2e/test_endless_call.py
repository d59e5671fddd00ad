"""A call into a decoder that does not return is ended with its process; who waits behind it is served."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.e2e.conftest import Start
from tests.e2e.faults import GREEDY, SMALL, later
from tests.e2e.running import RunningServer, data_url, picture, until
from tests.e2e.test_lanes import seconds_of

pytestmark = [pytest.mark.faults, pytest.mark.process]
PULSE_SECONDS = 2.0
SIDE = 77
# A double of a decoder with a defect: for a picture of that side it computes for years, without the interpreter's lock.
ENDLESS = f"""
import hashlib, sys
if any(word.endswith("worker") for word in sys.orig_argv):
    from PIL import ImageFile
    load = ImageFile.ImageFile.load
    def loading(self):
        if self.size == ({SIDE}, {SIDE}):
            hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)
        return load(self)
    ImageFile.ImageFile.load = loading
"""


@pytest.fixture(scope="module")
def server(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    path = tmp_path_factory.mktemp("endless")
    (path / "sitecustomize.py").write_text(ENDLESS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(path))
        with start("--workers", "1", "--pulse-seconds", str(PULSE_SECONDS)) as server:
            yield server


def test_it_is_refused_once_and_its_neighbours_are_answered(server: RunningServer) -> None:
    """One holds the worker of all media, one that of pictures, and eight chats wait behind both."""
    endless = {"image": data_url(picture(SIDE, SIDE))}
    video: Any = {"video": [SMALL] * 4}
    with ThreadPoolExecutor(12) as pool:
        pids = [*server.children("worker"), *server.children("picture_worker")]
        begun = [seconds_of([pid]) for pid in pids]
        stuck = [later(pool, server, endless) for _ in range(2)]
        until("both are taken", lambda: server.http.get("/health/ready").json()["requests"] == 2)
        until("both compute", lambda: all(seconds_of([p]) - b > 0.3 for p, b in zip(pids, begun, strict=True)))
        behind = [later(pool, server, {"image": SMALL}) for _ in range(4)]
        behind += [later(pool, server, video) for _ in range(4)]
        texts = [later(pool, server, {"text": "Hi"}) for _ in range(2)]
        answers = [one.result() for one in stuck]
        assert [one.status_code for one in answers] == [400, 400]
        for one in answers:
            error = one.json()["error"]
            assert (error["code"], error["param"]) == ("took_too_long", "inputs[0].image") and "3 s" in error["message"]
        assert [one.result().status_code for one in (*behind, *texts)] == [200] * 10
    roles = ("worker", "picture_worker")
    assert [server.metric(f'child_hangs_total{{role="{role}"}}') for role in roles] == [1, 1], "not tried again"
    assert server.chat({"image": SMALL}, **GREEDY).status_code == 200
    server.assert_nothing_held()
