"""LiteLLM's proxy in front of this server, asked by openai-python: a chat of two turns, a stream, tools."""

import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from openai import OpenAI

from tests.clients.case import AGAIN, KEY, MODEL, PICTURE_URL, QUESTION, TOKENS, URL, WEATHER, run, seen, weather

SECONDS = 200.0  # for the proxy's imports
MASTER_KEY = f"sk-{secrets.token_hex(16)}"  # it does not start without one
NAME = "ferry"  # under which the proxy has the model
ASKED: Any = [
    {
        "role": "user",
        "content": [
            {"type": "image_url", "image_url": {"url": PICTURE_URL}},
            {"type": "text", "text": QUESTION},
        ],
    }
]


@contextmanager
def proxy(directory: Path) -> Iterator[OpenAI]:
    """A client of a proxy that knows this server alone."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = directory / "config.yaml"
    params = {"model": f"hosted_vllm/{MODEL}", "api_base": f"{URL}/v1", "api_key": KEY}
    config.write_text(json.dumps({"model_list": [{"model_name": NAME, "litellm_params": params}]}))  # JSON is YAML
    program = str(Path(sys.executable).with_name("litellm"))
    command = [program, "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
    log = directory / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, cwd=directory, stdout=out, stderr=out, stdin=subprocess.DEVNULL,
            env={**os.environ, "LITELLM_MASTER_KEY": MASTER_KEY},
        )  # fmt: skip
    try:
        until = time.monotonic() + SECONDS
        while not lives(port):
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"the proxy does not answer:\n{log.read_text()}")
            time.sleep(0.5)
        with OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=MASTER_KEY, max_retries=0) as client:
            yield client
    finally:
        process.terminate()
        process.wait(30)


def lives(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health/liveliness", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def main(client: OpenAI) -> None:
    """Run all parts against the proxy."""

    def answered(messages: Any = ASKED, **wishes: Any) -> Any:
        asked = {"model": NAME, "messages": messages, "max_tokens": TOKENS, "temperature": 0}
        return client.chat.completions.create(**asked, **wishes)

    def chat() -> None:
        seen(answered().choices[0].message.content)

    def stream() -> None:
        pieces = [choice.delta.content or "" for chunk in answered(stream=True) for choice in chunk.choices]
        assert len(pieces) > 2
        seen("".join(pieces))

    def turns() -> None:
        history = [*ASKED, answered().choices[0].message.to_dict(), {"role": "user", "content": AGAIN}]
        seen(answered(history).choices[0].message.content)

    def tools() -> None:
        asked: Any = [{"role": "user", "content": "What is the weather in Paris?"}]
        wishes = {"tools": [WEATHER], "parallel_tool_calls": False}
        first = answered(asked, tool_choice="required", **wishes).choices[0]
        [call] = first.message.tool_calls
        assert first.finish_reason == "tool_calls" and call.function.name == "weather"
        said = weather(**json.loads(call.function.arguments))
        asked += [first.message.to_dict(), {"role": "tool", "tool_call_id": call.id, "content": said}]
        last = answered(asked, tool_choice="none", **wishes).choices[0]
        assert last.message.content and not last.message.tool_calls, last

    run(chat, stream, turns, tools)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place, proxy(Path(place)) as asked:
        main(asked)
