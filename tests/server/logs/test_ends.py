"""How requests end is counted once each, also where the status was a 200, and the alert on errors reads it."""

import ast
import asyncio
import re
from pathlib import Path
from typing import Any

import httpx

from server.http.app import create_app
from server.metrics import FAULTS, FINISHED, PREFIX, REFUSALS
from tests.deploy.shipped import alerts
from tests.server.doubles import Scene, until, value_of
from tests.server.http.exchanges import behind_guard, bodies
from tests.server.scenario import A, Play, generating
from tests.tables import each_of

REPO = Path(__file__).resolve().parents[3]
CODE_AT = {  # of the arguments of whoever makes an error: which is its code
    "invalid_request": 2, "ChatError": 2, "not_found": 2, "forbidden": 1, "timed_out": 1, "overloaded": 1,
    "unavailable": 1, "internal": 1, "Refusal": 3, "ErrorResponse": 2,
}  # fmt: skip
NOT_OF_REQUESTS = {"head_timeout", "engine_stuck"}  # of a connection without a request, and of probes


@each_of("ends", ["stop", "length", "engine_died", "cut_off", "model_not_found"])
def test_each_end_is_counted_once(ends: str, play: Play) -> None:
    """A stream whose engine died counted as a 200 and as nothing else."""

    async def scenario(scene: Scene) -> None:
        transport = httpx.ASGITransport(app=behind_guard(create_app(scene.service, bodies())))
        model = "other" if ends == "model_not_found" else "tiny"
        body = {"model": model, "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            asked = asyncio.create_task(client.post("/v1/chat/completions", json=body))
            if ends != "model_not_found":
                await until(scene.to_worker)
                name = scene.to_worker()[-1].request_id
                await generating(scene, name)
                scene.say(name, A, finish=ends if ends in ("stop", "length") else None)
                await until(lambda: value_of(scene.metrics, "time_to_first_token_seconds_count") == 1)
                if ends == "engine_died":
                    scene.kill_engine()
                elif ends == "cut_off":  # by the server's end
                    asked.cancel()
                    scene.finished(name, "abort")
            (answer,) = await asyncio.gather(asked, return_exceptions=True)
        if isinstance(answer, httpx.Response):
            assert answer.status_code == (404 if ends == "model_not_found" else 200)
        assert counted(scene) == {ends: 1}

    play(scenario)


def test_a_client_that_leaves_is_an_abort(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        told: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        told.put_nowait({"type": "http.request", "body": b'{"inputs": [{"text": "Hi"}]}', "more_body": False})

        async def send(message: Any) -> None: ...

        scope = {
            "type": "http", "method": "POST", "path": "/chat", "raw_path": b"/chat", "query_string": b"",
            "headers": [(b"host", b"test"), (b"content-type", b"application/json")], "scheme": "http",
            "server": ("test", 80), "client": ("10.0.0.1", 1), "http_version": "1.1", "root_path": "",
        }  # fmt: skip
        asked = asyncio.create_task(behind_guard(create_app(scene.service, bodies()))(scope, told.get, send))
        await until(scene.to_worker)
        name = scene.to_worker()[-1].request_id
        await generating(scene, name)
        told.put_nowait({"type": "http.disconnect"})
        await asked
        scene.finished(name, "abort")
        assert counted(scene) == {"abort": 1}

    play(scenario)


def counted(scene: Scene) -> dict[str, float]:
    """How requests ended, where any did."""
    value = scene.metrics.registry.get_sample_value
    found = {how: value(f"{PREFIX}request_success_total", {"finished_reason": how, **MODEL}) for how in ALL}
    assert None not in found.values()
    return {how: n for how, n in found.items() if n}


MODEL = {"model_name": "tiny"}
ALL = (*FINISHED, *FAULTS, *REFUSALS)


def test_every_code_has_its_series() -> None:
    """Those that the code makes errors of, and those that docs/api.md lists."""
    made: set[str] = set()
    for path in [*(REPO / "server").rglob("*.py"), *(REPO / "tokenization").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in CODE_AT:
                given = [one.value for one in node.keywords if one.arg == "code"]
                given += node.args[CODE_AT[node.func.id] :][:1]  # type: ignore[attr-defined]
                made |= {one.value for one in given if isinstance(one, ast.Constant) and isinstance(one.value, str)}
    assert len(made) > 30
    table = (
        (REPO / "docs" / "api.md").read_text(encoding="utf-8").partition("## Errors")[2].partition("\n\nA stream")[0]
    )
    listed = {code for row in table.splitlines() for code in re.findall(r"`([a-z_]+)`", row.rpartition("|")[0])}
    codes = {code for code in listed if "_" in code} | made
    assert codes - NOT_OF_REQUESTS - set(ALL) == set()
    assert len(ALL) == len(set(ALL))


def test_the_alert_reads_every_fault_of_the_servers_own() -> None:
    found = re.search(r'finished_reason=~"([a-z_|]+)"', alerts()["PixelferryErrors"])
    assert found is not None and found[1].split("|") == sorted(FAULTS)
