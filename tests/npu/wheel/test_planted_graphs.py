"""The checks of tests/npu/test_graphs.py on the real torch_npu, and the mistakes that they catch there as well."""

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from model.net.multimodal import MultimodalLM
from model.ops.npu import NpuOps, _GraphAttention
from model.staging import graphs
from model.staging.graphs import _Captured
from tests.model.engine.engine_harness import engine_at
from tests.npu import test_graphs as ring0
from tests.npu.graph_references import WORKSPACE
from tests.npu.pairs import REPO
from tests.npu.stub.counts import stub
from tests.npu.test_planted_graphs import MISTAKES, Mistake
from tests.npu.wheel.twins import BLOCK, load_on

pytestmark = pytest.mark.npu

HERE = [mistake for mistake in MISTAKES if mistake.name != "attention that cannot be updated"]  # torch_npu mends it


@pytest.fixture(scope="module")
def model(npu: torch.device, tmp_path_factory: pytest.TempPathFactory) -> MultimodalLM:
    return load_on(ring0.checkpoint_by_length(tmp_path_factory.mktemp("model")), npu, torch.bfloat16)


@pytest.fixture(autouse=True)
def whole(npu: torch.device) -> Iterator[None]:
    """A mistake may leave a stream that hangs: the stub drops its work and says so, once for each stream."""
    yield
    with contextlib.suppress(RuntimeError):
        torch.get_device_module(npu).synchronize()


def test_lengths_bases_and_scales(model: MultimodalLM) -> None:
    ring0.check_lengths(model)


def test_a_full_cache(model: MultimodalLM) -> None:
    ring0.check_full_cache(model)


def test_heads_that_are_padded(model: MultimodalLM) -> None:
    ring0.check_padded(model)


@pytest.mark.parametrize(("place", "name"), ring0.BEHIND_A_REPLAY)
def test_an_error_behind_a_replay_leaves_none_that_waits(place: Any, name: str, model: MultimodalLM) -> None:
    """Else the driver's stub says 107020, where a card hangs."""
    assert ring0.check_an_error(model, place, name) == [[21, 61]]
    torch.get_device_module(model.device).synchronize()


def check_memory(model: MultimodalLM) -> None:
    """All graphs are in the pool of the largest, which is captured first, and share one workspace of what it takes."""
    engine = engine_at(
        model, Path("/nonexistent"), block_size=BLOCK, graphs=True, kv_tokens=9 * BLOCK, max_model_len=4 * BLOCK
    )
    engine.capture_graphs()
    graphs = engine._runner._graphs
    assert graphs is not None and list(graphs._captured) == sorted(graphs._captured, reverse=True)
    captured = list(graphs._captured.values())
    assert len({tuple(one.graph.pool()) for one in captured}) == 1 < len(captured)
    spaces = [one._attend.workspace for one in captured if isinstance(one._attend, _GraphAttention)]
    [(address, nbytes)] = {
        (space.data_ptr(), space.untyped_storage().nbytes()) for space in spaces if space is not None
    }
    assert address and nbytes == WORKSPACE


def test_memory_that_graphs_share(model: MultimodalLM) -> None:
    check_memory(model)


def check_first_capture(model: MultimodalLM) -> None:
    """A kernel's program is loaded before it is captured: a capture forbids what loading it does."""
    stub().stub_unload()
    check_memory(model)


def test_a_first_capture(model: MultimodalLM) -> None:
    check_first_capture(model)


def own_workspaces(patch: pytest.MonkeyPatch) -> None:
    real = NpuOps.graph_attention
    patch.setattr(NpuOps, "graph_attention", lambda self, tables, size, beside: real(self, tables, size))


def a_pool_for_each(patch: pytest.MonkeyPatch) -> None:
    real = _Captured.capture
    patch.setattr(_Captured, "capture", lambda self, module, pool: real(self, module, None))


def from_the_smallest_up(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(graphs, "reversed", list, raising=False)


def without_a_launch_before(patch: pytest.MonkeyPatch) -> None:
    real, begun = _Captured._network, set[int]()

    def network(self: Any) -> Any:
        if id(self) in begun:
            return real(self)
        begun.add(id(self))
        return None

    patch.setattr(_Captured, "_network", network)


OF_MEMORY = (
    Mistake(
        name="a pool for each size", plant=a_pool_for_each, check=check_memory,
        raises=AssertionError, says="assert",
    ),
    Mistake(
        name="from the smallest up", plant=from_the_smallest_up, check=check_memory,
        raises=AssertionError, says="assert",
    ),
    Mistake(name="a workspace each", plant=own_workspaces, check=check_memory, raises=ValueError, says="unpack"),
)  # fmt: skip


@pytest.mark.parametrize("mistake", (*HERE, *OF_MEMORY), ids=lambda mistake: mistake.name)
def test_a_planted_mistake_is_caught(mistake: Mistake, model: MultimodalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    mistake.plant(monkeypatch)
    with pytest.raises(mistake.raises, match=mistake.says):
        mistake.check(model)


UNLOADED = """
import sys
from pathlib import Path
import pytest
import torch
from tests.npu import test_graphs as ring0
from tests.npu.wheel import test_planted_graphs as planted
from tests.npu.wheel.twins import load_on, open_npu
model = load_on(ring0.checkpoint_by_length(Path(sys.argv[1])), open_npu(), torch.bfloat16)
planted.without_a_launch_before(pytest.MonkeyPatch())
planted.check_first_capture(model)
"""


def test_no_launch_before_a_capture_is_caught(tmp_path: Path) -> None:
    """In a process of its own: torch_npu may abort where a capture is broken off."""
    command = [sys.executable, "-c", UNLOADED, str(tmp_path)]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=100)
    assert done.returncode == -signal.SIGABRT or "107027" in done.stderr, done.stderr
