"""huggingface_hub against a hub on loopback: what is fetched, what goes on after a fault, and what a user is told."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants, set_client_factory
from huggingface_hub.utils._http import default_client_factory

from configs.checkpoint import CheckpointError
from configs.setting import HubModel
from server.http.health import DownloadProgress
from server.hub.client import HubError
from server.hub.fetch import fetch as fetch_with
from server.hub.huggingface import HuggingFace
from tests.server.hub.fetching import error_of, fetch
from tests.server.hub.small_hub import COMMIT, SmallHub, running
from tests.tables import each_of
from tests.tiny.qwen2_vl import write_qwen2_vl

CLUTTER = ("README.md", "modeling_tiny.py", "pytorch_model.bin", "onnx/model.onnx", "original/consolidated.00.pth",
           "model-Q4_K_M.gguf", "tf_model.h5", "onnx/config.json")  # fmt: skip


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    path = write_qwen2_vl(tmp_path_factory.mktemp("tiny") / "model")
    return {file.name: file.read_bytes() for file in path.iterdir()}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[SmallHub], Path]]:
    """here(hub): the library of this very process asks that hub, as its environment would say; its cache."""
    cache = tmp_path / "a" / "cache"

    def ask(hub: SmallHub) -> Path:
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        template = "{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", f"{hub.url}/{template}")
        return cache

    yield ask
    set_client_factory(default_client_factory)  # the process's own again; closes connections


def fetched(revision: str | None = None) -> Path:
    """What is served of the model, from the hub that `here` named."""
    model = HubModel("tiny/model", revision)
    return fetch_with(HuggingFace(model, DownloadProgress()), "tiny/model", DownloadProgress())


def refused() -> str:
    with pytest.raises((HubError, CheckpointError)) as told:
        fetched()
    assert "\n" not in str(told.value)
    return str(told.value)


@pytest.mark.process
def test_what_is_served_is_fetched_and_nothing_else(checkpoint: dict[str, bytes], tmp_path: Path) -> None:
    """And is served offline afterwards."""
    with running({**checkpoint, **dict.fromkeys(CLUTTER, b"clutter")}) as hub:
        done = fetch(hub.url, tmp_path, "tiny/model")
        assert not any(hub.got(name) for name in CLUTTER)
        hub.asked.clear()
        assert fetch(hub.url, tmp_path, "tiny/model", HF_HUB_OFFLINE="1").stdout == done.stdout
        assert hub.asked == []
    path, wanted, served_as, card, torch = done.stdout.splitlines()
    assert {file.name: file.read_bytes() for file in Path(path).iterdir()} == checkpoint
    assert Path(path).is_relative_to(tmp_path)
    assert (wanted, served_as, card, torch) == (f"tiny/model@{COMMIT}", "tiny/model", "tiny/model", "False")
    assert f"tiny/model at {COMMIT}: 7 files" in done.stderr and "HTTP Request" not in done.stderr


def test_what_is_there_is_not_fetched_again(
    checkpoint: dict[str, bytes], here: Callable[[SmallHub], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(checkpoint) as hub:
        here(hub)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        assert "HF_HUB_OFFLINE is set: start once without it" in refused()
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        hub.files = {"config.json": checkpoint["config.json"]}
        assert "no weights here" in refused()
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        assert "no weights here" in refused()
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        hub.files = checkpoint
        first = fetched()
        hub.asked.clear()
        assert fetched(COMMIT) == first and not hub.got("resolve")
    told = refused()
    assert "cannot reach" in told and "HF_HUB_OFFLINE=1" in told


@pytest.mark.process
def test_a_connection_that_breaks_goes_on_where_it_stopped(
    checkpoint: dict[str, bytes], here: Callable[[SmallHub], Path]
) -> None:
    weights = checkpoint["model.safetensors"] + bytes(24 << 20)  # the library writes blocks of 10 MiB
    with running({**checkpoint, "model.safetensors": weights}, cut={"model.safetensors": 21 << 20}, cuts_left=1) as hub:
        here(hub)
        assert (fetched() / "model.safetensors").read_bytes() == weights
    assert [line.rpartition(" ")[2] for line in hub.got("model.safetensors")[1:]] == [f"bytes={20 << 20}-"]


@pytest.mark.process
def test_a_download_that_was_interrupted_goes_on_with_what_is_missing(
    checkpoint: dict[str, bytes], here: Callable[[SmallHub], Path]
) -> None:
    shards = {f"model-0000{n}-of-00002.safetensors": bytes([n]) * 1000 for n in (1, 2)}
    index = {"weight_map": {str(n): name for n, name in enumerate(shards)}}
    files = {name: body for name, body in checkpoint.items() if name != "model.safetensors"}
    files |= {**shards, "model.safetensors.index.json": json.dumps(index).encode()}
    first, second = shards
    with running(files, etags={second: "x" * 300}) as hub:  # no file can have that name
        here(hub)
        assert "the download broke off" in refused()
        hub.asked.clear()
        hub.etags.clear()
        path = fetched()
    assert (path / second).read_bytes() == shards[second]
    assert not hub.got(first) and hub.got(second)


@each_of(
    ("refusal", "words"),
    [
        ((404, "RepoNotFound"), ("no model tiny/model on http://127.0.0.1", "no directory", "HF_TOKEN")),
        ((401, ""), ("status 401", "HF_TOKEN")),
        ((403, "GatedRepo"), ("gated", "accept its terms on http://127.0.0.1", "HF_TOKEN")),
        ((404, "RevisionNotFound"), ("no revision 'main'",)),
        ((404, "EntryNotFound"), ("no file config.json", "not a checkpoint")),
        ((403, ""), ("status 403", "HF_TOKEN")),
        ((418, ""), ("status 418", "try again later")),
        ((200, ""), ("does not answer as a hub does", "HF_ENDPOINT")),
    ],
)
def test_a_refusal_is_one_sentence_with_a_remedy(
    refusal: tuple[int, str], words: tuple[str, ...], here: Callable[[SmallHub], Path]
) -> None:
    with running({}, refusal=refusal) as hub:
        here(hub)
        told = refused()
    assert all(word in told for word in words), told


@pytest.mark.process
def test_a_refusal_is_what_the_program_ends_with(tmp_path: Path) -> None:
    with running({}, refusal=(403, "GatedRepo")) as hub:
        told = error_of(fetch(hub.url, tmp_path, "tiny/model"))
    assert told.startswith("tiny/model is gated: accept its terms on http://127.0.0.1")


@each_of("hostile", ["../x", "/tmp/pixelferry-hostile.json", "a/../../x.json", "..", "x\\..\\y.json"])
def test_a_hostile_list_writes_nothing_outside(
    hostile: str, checkpoint: dict[str, bytes], here: Callable[[SmallHub], Path], tmp_path: Path
) -> None:
    with running({**checkpoint, hostile: b"hostile"}) as hub:
        cache = here(hub)
        folder = fetched()
        assert not any("hostile" in line or ".." in line for line in hub.asked)
    assert {path.name for path in folder.iterdir()} == set(checkpoint) and folder.is_relative_to(cache)
    assert all(path.is_relative_to(cache) for path in tmp_path.rglob("*") if not cache.is_relative_to(path))


ESCAPES = [
    ("ETag", '"../../../../escaped"'),
    ("ETag", 'W/"../../../../escaped"'),
    ("ETag", '"{outside}/escaped"'),
    ("ETag", "x/../../../../escaped"),
    ("ETag", '".."'),
    ("X-Linked-ETag", '"../../../../escaped"'),
    ("X-Repo-Commit", "../../../../../escaped"),
    ("X-Repo-Commit", "{outside}/escaped"),
]


@each_of("name", ["config.json", "missing.json"])
@each_of(("header", "value"), ESCAPES)
def test_a_header_that_leads_out_of_the_cache_is_refused_before_anything_is_written(
    header: str, value: str, name: str, here: Callable[[SmallHub], Path], tmp_path: Path
) -> None:
    """Also of a file that is not there: the library notes under the commit that it is missing."""
    extra = {header: value.format(outside=tmp_path / "outside")}
    with running({"config.json": b"{}"}, extra=extra) as hub:
        here(hub)
        with pytest.raises(HubError, match=f"(?i)127.0.0.1 answered with {header} .*lead out of the cache"):
            HuggingFace(HubModel("tiny/model"), DownloadProgress()).fetch([name])
        assert hub.asked and not hub.got(name)
    assert not [path for path in tmp_path.rglob("*")]


def test_a_library_that_is_missing_is_named_with_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    with pytest.raises(HubError, match=r"python\S* -m pip install -c /.*/constraints/cpu.txt -e '/.*\[hub\]'"):
        HuggingFace(HubModel("tiny/model"), DownloadProgress())
