"""`make clients`: each client's script in its environment against one server of the embedded model; a line for each."""

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.running import REPO, running

BUILD = REPO / "build" / "clients"
SECONDS = 240.0  # of one script; most of it is what the client imports
OFFLINE = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # else its import asks the network for prices
PART = re.compile(r"^(\w+): (works|FAILED)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A script, and the environment of build/clients/ that it runs in."""

    script: str
    environment: str

    def command(self, url: str, model: str) -> list[str]:
        home = BUILD / self.environment
        if self.script.endswith(".mjs"):
            return ["node", f"tests/clients/{self.script}", url, model, str(home)]
        return [str(home / "bin" / "python"), "-m", f"tests.clients.{self.script}", url, model]


CLIENTS = (
    Client(script="with_openai", environment="agents"),
    Client(script="with_openai_responses", environment="agents"),
    Client(script="with_langchain", environment="agents"),
    Client(script="with_agents_sdk", environment="agents"),
    Client(script="with_agents_responses", environment="agents"),
    Client(script="with_pydantic_ai", environment="agents"),
    Client(script="with_anthropic", environment="anthropic"),
    Client(script="with_instructor", environment="instructor"),
    Client(script="with_litellm", environment="litellm"),
    Client(script="with_litellm_proxy", environment="litellm"),
    Client(script="with_llama_index", environment="llama_index"),
    Client(script="with_ai_sdk.mjs", environment="node"),
    Client(script="with_ai_sdk_responses.mjs", environment="node"),
)


def run(client: Client, url: str, model: str) -> tuple[bool, str]:
    """Whether every part worked, and the client's line. What failed is printed as the script tells it."""
    began = time.monotonic()
    done = subprocess.run(
        client.command(url, model), cwd=REPO, env={**os.environ, **OFFLINE}, capture_output=True, text=True,
        timeout=SECONDS, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    parts = PART.findall(done.stdout)
    right = done.returncode == 0 and bool(parts) and all(word == "works" for _, word in parts)
    if not right:
        print(f"{client.script} ended with {done.returncode}:\n{done.stdout}{done.stderr}", flush=True)
    told = ", ".join(name if word == "works" else f"{name} FAILED" for name, word in parts) or "nothing ran"
    return right, f"{client.script}: {told}; {time.monotonic() - began:.0f} s"


def main(wanted: Sequence[str]) -> int:
    """Run the clients whose scripts are named, all without a name; the exit code."""
    results = []
    with (
        tempfile.TemporaryDirectory() as logs,
        running(None, Path(f"{logs}-shm"), Path(logs), "--workers", "1") as server,
    ):
        model = server.http.get("/v1/models").json()["data"][0]["id"]
        for client in CLIENTS:
            if not wanted or client.script in wanted:
                results.append(run(client, server.url, model))
    for _, line in results:
        print(line)
    return 0 if results and all(right for right, _ in results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
