"""Bodies and answers that are made to cost, at full scale, beside a second client of the same address."""

import json
from collections.abc import Sequence

import pytest

from tests.e2e.conftest import Start
from tests.hostile.conftest import Held
from tests.hostile.measure import Attack
from tests.hostile.posting import MIB, posting

pytestmark = [pytest.mark.long, pytest.mark.process]

EXCHANGE = b'{"inputs":[{"text":""}],"text":""},'


def chat(**parameters: object) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": "x"}], **parameters}).encode()


LARGE = {"n": 8, "max_tokens": 2500, "logprobs": True, "top_logprobs": 20, "ignore_eos": True}
EVIL = {"host": "evil.example", "content-type": "text/plain"}
ATTACKS: Sequence[Attack] = (
    posting("row 4 echo", "/chat", lambda: b'{"inputs":[],"' + b"\\u0001" * (20 * MIB // 6) + b'":1}', 400),
    posting("row 6 exchanges", "/chat", lambda: b'{"history":[' + EXCHANGE * (63 * MIB // 35) + b"{}]}", 400),
    posting("row 6 lists", "/chat", lambda: b"[" + b"[]," * (4 * MIB) + b"[]]", 400),
    posting("row 6 pictures", "/chat", lambda: b"[" + b'{"image":"a"},' * 32000 + b'{"image":"a"}]', 400),
    posting("row 10 names", "/chat", lambda: b"{}", 403, EVIL),
    posting("row 12 path", "/chat", lambda: b'[{"image":"' + b"ab/" * (20 * MIB) + b'"}]', 400),
    posting("row 12 percent", "/chat", lambda: b'[{"image":"data:image/png,' + b"%41" * (20 * MIB) + b'"}]', 400),
    # One at a time: two would fill the engine's places, which are first come, first served.
    posting("row 13 answers", "/v1/chat/completions", lambda: chat(**LARGE), 200, n=1),
)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name.replace(" ", "-"))
def test_others_are_answered(
    start: Start, held: Held, tmp_path_factory: pytest.TempPathFactory, attack: Attack
) -> None:
    with start("--allow-media-root", str(tmp_path_factory.mktemp("media"))) as server:
        held(server, attack)
