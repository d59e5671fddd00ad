"""The stub and the wrapped kernels themselves: a mistake that a device would punish shows here, too."""

from typing import Any

import pytest
import torch

from tests.npu.stub.counts import counted, launches

pytestmark = pytest.mark.npu


@pytest.fixture
def module(npu: torch.device) -> Any:
    return torch.get_device_module(npu)


def test_a_copy_to_the_device_is_late(npu: torch.device, module: Any) -> None:
    """Whoever writes into the source too early finds that in the copy."""
    source = torch.ones(4).pin_memory()
    early = source.to(npu, non_blocking=True)
    source.fill_(7)
    assert early.tolist() == [7] * 4
    safe = source.to(npu, non_blocking=True)
    module.current_stream().synchronize()
    source.fill_(8)
    assert safe.tolist() == [7] * 4


def test_a_copy_from_the_device_is_late(npu: torch.device, module: Any) -> None:
    device, host = torch.ones(4, device=npu), torch.zeros(4).pin_memory()
    host.copy_(device, non_blocking=True)
    assert host.tolist() == [0] * 4
    module.current_stream().synchronize()
    assert host.tolist() == [1] * 4


def test_an_event_tells_when_a_copy_is_done(npu: torch.device, module: Any) -> None:
    device, host = torch.ones(4, device=npu), torch.zeros(4).pin_memory()
    host.copy_(device, non_blocking=True)
    event = module.Event()
    event.record()
    assert host.tolist() == [0] * 4
    event.synchronize()
    assert host.tolist() == [1] * 4


@pytest.mark.parametrize(("waits", "expected"), [(True, 1.0), (False, 0.0)])
def test_a_stream_runs_ahead_of_another_one(npu: torch.device, module: Any, waits: bool, expected: float) -> None:
    """What a kernel reads of a copy on another stream, with and without waiting for its event."""
    source, target = torch.ones(4).pin_memory(), torch.zeros(4, device=npu)
    side, event = module.Stream(), module.Event()
    module.synchronize()
    with module.stream(side):
        target.copy_(source, non_blocking=True)
        event.record(side)
    if waits:
        module.current_stream().wait_event(event)
    doubled = target * 2
    assert doubled.tolist() == [2 * expected] * 4
    module.synchronize()


def test_a_kernel_comes_behind_the_copies_of_its_stream(npu: torch.device) -> None:
    source = torch.ones(4).pin_memory()
    doubled = source.to(npu, non_blocking=True) * 2
    source.fill_(7)
    assert doubled.tolist() == [2.0] * 4


def test_calls_are_counted(npu: torch.device) -> None:
    x = torch.arange(12.0).view(3, 4).to(npu)
    with counted() as found:
        product = x @ x.T
    assert launches(found) == {"aclnnMatmul": 1} and found == launches(found)
    with counted() as found:
        product.cpu()
    assert found == {"wait_stream": 1, "copy_blocking_device_to_host": 1}


def test_an_operator_without_a_kernel_is_an_error(npu: torch.device) -> None:
    """It does not run on the CPU unseen."""
    with pytest.raises(RuntimeError, match="aten::mode has no kernel for the device"):
        torch.mode(torch.arange(4, device=npu))


def test_an_operator_without_a_reference_is_an_error(npu: torch.device) -> None:
    x = torch.zeros(1, 1, 2, 64, dtype=torch.float16, device=npu)
    with pytest.raises(RuntimeError, match="npu_interleave_rope launched something, and ring 1 has no reference"):
        torch.ops.npu.npu_interleave_rope(x, x[..., :1, :], x[..., :1, :])


def test_a_check_of_the_wheel_is_alive(npu: torch.device) -> None:
    """The kernel's own, before anything is computed."""
    x = torch.zeros(2, 2, 64, dtype=torch.float16, device=npu)
    with pytest.raises(RuntimeError, match="layout"):
        torch.ops.npu.npu_fused_infer_attention_score(x, x, x, input_layout="NONE", num_heads=2)


def test_the_stub_is_a_current_cann(npu: torch.device, module: Any) -> None:
    """Else the wheel takes branches that no machine in use takes."""
    assert module.utils._is_gte_cann_version("9.1.0")


def test_a_graph_computes_when_it_is_replayed(npu: torch.device, module: Any) -> None:
    """From what then lies at the addresses that it captured."""
    x = torch.ones(4, device=npu)
    graph = module.NPUGraph()
    with counted() as found, module.graph(graph):
        doubled = x * 2
    assert found["graph_capture"] == 1 and found["aclnnMul"] + found["aclnnMuls"] == 1
    x.fill_(3)
    module.synchronize()
    assert doubled.cpu().tolist() != [6.0] * 4
    with counted() as found:
        graph.replay()
        assert doubled.cpu().tolist() == [6.0] * 4
    assert found["graph_replay"] == 1 and not launches(found)


def test_a_blocking_call_in_a_capture_is_refused(npu: torch.device, module: Any) -> None:
    x = torch.ones(4, device=npu)
    assert x.sum().item() == 4  # loaded: what loads in a capture is refused earlier
    with pytest.raises(RuntimeError, match="107027"), module.graph(module.NPUGraph()):
        x.sum().item()
    with pytest.raises(RuntimeError, match="107027"), module.graph(module.NPUGraph()):
        torch.zeros(3).to(npu)


def test_a_replay_waits_for_an_event_from_outside(npu: torch.device, module: Any) -> None:
    """For ever, on a device; the stub says so to whoever waits for the stream."""
    x, side, event = torch.ones(4, device=npu), module.Stream(), module.ExternalEvent()
    graph = module.NPUGraph()
    with module.graph(graph):
        event.wait(module.current_stream())
        event.reset(module.current_stream())
        doubled = x * 2
    event.record(side)
    graph.replay()
    assert doubled.cpu().tolist() == [2.0] * 4
    graph.replay()
    with pytest.raises(RuntimeError, match="107020"):
        module.synchronize()
