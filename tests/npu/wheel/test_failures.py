"""Errors of a device, raised by the driver's stub and told by torch_npu: who pays, and that the engine starts again.

The server's torch_npu launches from its own queue, as it does by default: there a launch that fails is told once, later
calls are silent, and no event behind it is ever done.
"""

import logging
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import torch

from configs.settings import EMBEDDED_MODEL
from model.engine import runner
from model.engine.loop import load, warm_up
from model.staging.graphs import DecodeGraphs
from model.staging.packing import Packer, Packing
from tests.e2e.running import RunningServer, data_url, is_gone, picture, running, until
from tests.model.engine.engine_harness import Parts, engine_at, engine_harness_at
from tests.model.engine.engine_harness import picture as drawn
from tests.npu.stub.counts import counted
from tests.npu.wheel.families import GREEDY
from tests.npu.wheel.launches import FORM, RULES, TOP_P, pair
from tests.npu.wheel.test_memory import leave, start_of
from tests.npu.wheel.twins import BLOCK, load_on
from tests.tiny.qwen2_vl import write_qwen2_vl

pytestmark = pytest.mark.npu

FLAGS = (
    "--device", "npu", "--max-pixels", "50176", "--max-video-pixels", "50176", "--max-audio-seconds", "2",
    "--kv-cache-mib", "64", "--max-seqs", "4", "--max-encoder-tokens", "64", "--max-batched-tokens", "256",
    "--max-model-len", "512",
)  # fmt: skip
OF_ONE_REQUEST = {  # call, error, how often
    "refused": ("aclnnAddcmulGetWorkspaceSize", 561002, 1),
    "refused arguments": ("aclnnAddcmulGetWorkspaceSize", 161002, 1),
}
OF_THE_ENGINE = {
    "a launch of an encoder": ("aclnnAddcmul", 500002, 1),
    "a launch of a step": ("aclnnAddRmsNorm", 507018, 1),
    "a wait": ("aclrtSynchronizeEvent", 507015, 1),
}
SECONDS = 15.0  # until an engine ends whose device is broken: one that hangs is replaced after 20


@pytest.fixture(scope="module")
def fault(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fault") / "call"


@pytest.fixture(scope="module")
def server(shm_root: Path, tmp_path_factory: pytest.TempPathFactory, fault: Path) -> Iterator[RunningServer]:
    root = shm_root.with_name(f"{shm_root.name}-failing")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TASK_QUEUE_ENABLE", "1")
        patch.setenv("NPU_STUB_FAULT", str(fault))
        with running(EMBEDDED_MODEL, root, tmp_path_factory.mktemp("failing"), *FLAGS, wait=False) as found:
            found.wait_ready(110)
            found.http.timeout = 20
            yield found
    assert not root.exists()


def asked(server: RunningServer, side: int) -> httpx.Response:
    """A picture of a size that nobody asked about before."""
    return server.chat({"image": data_url(picture(side, 112))}, {"text": "What is in this picture?"}, max_tokens=4)


@pytest.mark.parametrize("kind", OF_ONE_REQUEST)
def test_what_is_of_one_request(server: RunningServer, fault: Path, kind: str) -> None:
    """It fails, its neighbour does not, and the engine goes on."""
    (engine,) = server.children("engine")
    name, code, times = OF_ONE_REQUEST[kind]
    fault.write_text(f"{name} {code} {times}\n")
    failed = asked(server, 112 + 28 * list(OF_ONE_REQUEST).index(kind))
    assert failed.status_code == 500, failed.text
    told = "the image could not be encoded (RuntimeError)"
    until("a thread has written it", lambda: server.err.count(told) > list(OF_ONE_REQUEST).index(kind))
    assert fault.read_text() == f"{name} {code} 0\n"
    assert asked(server, 112).status_code == 200
    assert server.children("engine") == [engine]


@pytest.mark.parametrize("kind", OF_THE_ENGINE)
def test_what_is_of_the_engine(server: RunningServer, fault: Path, kind: str) -> None:
    """Whose clients have their 503 within seconds; the next one serves."""
    until("ready", lambda: server.ready() == 200)
    (engine,) = server.children("engine")
    fault.write_text("{} {} {}\n".format(*OF_THE_ENGINE[kind]))
    begun = time.monotonic()
    with ThreadPoolExecutor(2) as threads:
        said = list(threads.map(lambda side: asked(server, side), (112, 140)))
    assert [answer.status_code for answer in said] == [503, 503], [answer.text for answer in said]
    until("the engine's end", lambda: is_gone(engine), SECONDS)
    assert time.monotonic() - begun < SECONDS
    until("another engine", lambda: server.ready() == 200, 60)
    assert asked(server, 112).status_code == 200
    server.assert_nothing_held()


def test_memory_that_an_encoder_cannot_have_is_of_its_request(
    npu: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_qwen2_vl(tmp_path / "tiny")
    with engine_harness_at(path, tmp_path / "shm") as harness:
        engine = engine_at(load_on(path, npu, torch.bfloat16), harness.root, block_size=BLOCK, tokens=4096)
        leave(torch.get_device_module(npu), 4, monkeypatch)
        for name, side in (("large", 800), ("small", 56)):
            parts: Parts = [drawn(side, side, 1), "what is it?"]
            harness.submit(engine, harness.prepare(name, parts, GREEDY))
            harness.run(engine)
        harness.assert_clean(engine)
    assert harness.finished["large"].message == "the image could not be encoded (OutOfMemoryError)"
    assert harness.finished["small"].reason == "done"


def test_nothing_is_allocated_between_a_replay_and_its_update(
    npu: torch.device, tmp_path: Path, fault: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the device or pinned: whoever finds no memory waits for the device, and that for the update; here 107020.

    Each step begins with an empty cache, and has rows of a published size, which ask for everything: two are held to a
    form, and one cuts by top_p alone, which sorts all.
    """
    monkeypatch.setenv("NPU_STUB_FAULT", str(fault))
    replay, update, open_, steps = DecodeGraphs.replay, DecodeGraphs.update, Packer.open, list[str]()

    def replayed(self: DecodeGraphs, batch: Any) -> torch.Tensor:
        states = replay(self, batch)
        fault.write_text("aclrtMalloc 207001 99\n")
        return states

    def updated(self: DecodeGraphs, kv_lens: Sequence[int]) -> float:
        steps.append(fault.read_text())
        fault.write_text("none\n")
        return update(self, kv_lens)

    def opened(self: Packer, fields: Any) -> Packing:
        assert fault.read_text() == "none\n"
        return open_(self, fields)

    fault.write_text("none\n")
    path = write_qwen2_vl(tmp_path / "tiny", vocab=152_064)
    samplings = {"a": TOP_P, "b": msgspec.structs.replace(TOP_P, top_k=0), "c": RULES}
    with engine_harness_at(path, tmp_path / "shm") as harness:
        model = load_on(path, npu, torch.bfloat16)
        engine = engine_at(model, harness.root, block_size=BLOCK, tokens=512, graphs=True, checkpoint=path)
        engine.capture_graphs()
        monkeypatch.setattr(DecodeGraphs, "replay", replayed)
        monkeypatch.setattr(DecodeGraphs, "update", updated)
        monkeypatch.setattr(Packer, "open", opened)
        for name, sampling in samplings.items():
            request = harness.prepare(name, [name], sampling)
            harness.submit(engine, msgspec.structs.replace(request, grammar=FORM if name < "c" else None))
        while not engine.idle:
            torch.get_device_module(npu).empty_cache()
            harness.book(engine.step())
        harness.assert_clean(engine)
    assert {answer.reason for answer in harness.finished.values()} == {"done"}
    assert steps == ["aclrtMalloc 207001 99\n"] * 7


def test_memory_that_sampling_cannot_have_is_told_before_a_replay(
    npu: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the allocator, as anywhere else; and the device has nothing to wait for."""
    module = torch.get_device_module(npu)
    path = write_qwen2_vl(tmp_path / "tiny")
    with engine_harness_at(path, tmp_path / "shm") as harness:
        engine = engine_at(load_on(path, npu, torch.bfloat16), harness.root, block_size=BLOCK, graphs=True)
        engine.capture_graphs()
        harness.submit(engine, harness.prepare("a", ["a"], GREEDY))
        harness.book(engine.step())
        monkeypatch.setattr(runner, "sampling_bytes", lambda rows, vocab_size: 100 << 20)
        leave(module, 64, monkeypatch)
        with counted() as found, pytest.raises(torch.OutOfMemoryError):
            engine.step()
        module.synchronize()
    assert found["graph_replay"] == found["graph_update"] == 0


@pytest.mark.parametrize(
    "call",
    [
        "aclnnFusedInferAttentionScoreV3GetMaxWorkspaceSize 561002 1",
        "aclmdlRICaptureTaskGrpBegin 207008 1",
        "aclmdlRICaptureBegin 207008 1",
    ],
)
def test_a_device_that_refuses_graphs_is_served_without(
    npu: torch.device, fault: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    call: str,
) -> None:  # fmt: skip
    """Told in one sentence, once."""
    if "2.10" in pair() and "CaptureBegin" in call:
        pytest.skip("its allocator then stays in the capture, and refuses")
    monkeypatch.setenv("NPU_STUB_FAULT", str(fault))
    fault.write_text(f"{call}\n")
    with caplog.at_level(logging.WARNING, "pixelferry"), counted() as found:
        engine, ready = load(start_of(write_qwen2_vl(tmp_path / "tiny"), tmp_path, max_seqs=4))
    (line,) = (line for line in caplog.messages if "graphs" in line)
    assert line.startswith("graphs of decode steps are refused (") and "\n" not in line
    assert line.endswith("): every step is launched instead") and call.split()[1] in line
    assert found["graph_replay"] == 0 and engine._runner._graphs is None and warm_up(engine)
    assert "graphs of decodes" not in {row[0] for row in ready.memory}


def test_a_device_that_breaks_in_a_capture_is_not_served(
    npu: torch.device, fault: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NPU_STUB_FAULT", str(fault))
    fault.write_text("aclmdlRICaptureTaskGrpBegin 507015 1\n")
    with pytest.raises(RuntimeError, match="507015"):
        load(start_of(write_qwen2_vl(tmp_path / "tiny"), tmp_path, max_seqs=4))
