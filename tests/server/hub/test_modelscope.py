"""modelscope_hub against a hub on loopback, as far as the library shows its protocol."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from configs.setting import HubModel
from server.http.health import DownloadProgress
from server.hub.client import HubError
from server.hub.fetch import fetch as fetch_with
from server.hub.modelscope import ModelScope
from tests.server.hub.fetching import error_of, fetch, files_under
from tests.server.hub.small_hub import SmallHub, running
from tests.tables import each_of
from tests.tiny.qwen2_vl import write_qwen2_vl

ARGS = ("tiny/model", "--hub", "modelscope")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    pytest.importorskip("modelscope_hub", reason="the extra modelscope is not installed")
    path = write_qwen2_vl(tmp_path_factory.mktemp("tiny") / "model")
    return {file.name: file.read_bytes() for file in path.iterdir()}


@pytest.mark.process
def test_what_is_served_is_fetched_once_and_nothing_else(checkpoint: dict[str, bytes], tmp_path: Path) -> None:
    with running({**checkpoint, "README.md": b"x", "../x.json": b"x", "sub/y.json": b"y", "code.py": b"z"}) as hub:
        done = fetch(hub.url, tmp_path / "cache", *ARGS)
        path, wanted, served_as, card, torch = done.stdout.splitlines()
        assert {file.name: file.read_bytes() for file in Path(path).iterdir()} == checkpoint
        assert (wanted, served_as, card, torch) == ("tiny/model@master", "tiny/model", "tiny/model", "False")
        assert "tiny/model at master: 7 files" in done.stderr and "file/s" not in done.stderr
        assert not any(hub.got(name) for name in ("x.json", "y.json", "code.py", "README.md"))
        hub.asked.clear()
        assert fetch(hub.url, tmp_path / "cache", *ARGS).stdout == done.stdout
        assert not hub.got("FilePath")
    assert all(name.startswith("cache/") for name in files_under(tmp_path))


@pytest.fixture(scope="module")
def shared(checkpoint: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallHub]:
    """The hub of the library in this very process, which remembers the first one that its environment named."""
    home = tmp_path_factory.mktemp("home")
    with running(checkpoint) as hub, pytest.MonkeyPatch.context() as patch:
        patch.setenv("MODELSCOPE_ENDPOINT", hub.url)
        patch.setenv("MODELSCOPE_HOME", str(home))
        yield hub


def fetched(cache: Path, name: str = "tiny/model") -> Path:
    """What is served of the model, as the library of this very process fetches it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MODELSCOPE_CACHE", str(cache))
        return fetch_with(ModelScope(HubModel(name), DownloadProgress()), name, DownloadProgress())


@pytest.mark.process
def test_a_connection_that_breaks_goes_on_where_it_stopped(
    shared: SmallHub, checkpoint: dict[str, bytes], tmp_path: Path
) -> None:
    shared.cut, shared.cuts_left = {"model.safetensors": 100_000}, 1
    assert (fetched(tmp_path) / "model.safetensors").read_bytes() == checkpoint["model.safetensors"]
    assert [line.endswith("bytes=100000-") for line in shared.got("model.safetensors")] == [False, True]


@pytest.mark.process
def test_a_refusal_is_what_the_program_ends_with(tmp_path: Path) -> None:
    with running({}) as hub:
        assert "has no file config.json" in error_of(fetch(hub.url, tmp_path, *ARGS))


@pytest.mark.process
@each_of(
    ("name", "refusal", "words"),
    [
        ("tiny/other", None, ("no model tiny/other on ModelScope's hub", "no directory", "MODELSCOPE_API_TOKEN")),
        ("tiny/model", (401, ""), ("does not let this account read it", "MODELSCOPE_API_TOKEN")),
        ("tiny/model", (403, ""), ("does not let this account read it", "MODELSCOPE_API_TOKEN")),
    ],
)
def test_a_refusal_is_one_sentence_with_a_remedy(
    name: str, refusal: tuple[int, str] | None, words: tuple[str, ...], shared: SmallHub, tmp_path: Path
) -> None:
    shared.refusal = refusal
    with pytest.raises(HubError) as told:
        fetched(tmp_path, name)
    assert all(word in str(told.value) for word in words) and "\n" not in str(told.value), told


def test_a_library_that_is_missing_is_named_with_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "modelscope_hub", None)
    with pytest.raises(HubError, match=r"pip install -c /.*/constraints/cpu.txt -e '/.*\[modelscope\]'"):
        ModelScope(HubModel("tiny/model"), DownloadProgress())
