"""A server that is told a model's name: it is downloaded from a hub, named exactly, and answers under its name."""

from pathlib import Path

import pytest

from tests.e2e.running import running
from tests.server.hub.small_hub import COMMIT
from tests.server.hub.small_hub import running as hub_of


def test_a_model_by_its_name_is_fetched_and_served(
    tiny_model: Path, shm_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hub_of(tiny_model) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        root = shm_root.with_name(f"{shm_root.name}-hub")
        with running(Path("tiny/model"), root, tmp_path / "logs") as server:
            assert server.chat({"text": "Hi"}, max_tokens=2).status_code == 200
            card = server.http.get("/v1/models/tiny/model").json()
            assert card["id"] == "tiny/model" and Path(card["root"]).is_relative_to(tmp_path / "cache")
            lines = [line.split() for line in server.out.splitlines()]
            assert ["from", f"tiny/model@{COMMIT}", "(huggingface)"] in lines
            assert "torch" not in Path(f"/proc/{server.pid}/maps").read_text()
