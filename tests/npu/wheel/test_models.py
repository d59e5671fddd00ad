"""Every family through the engine: what the stub's NPU gives is what ring 0 gives, bit for bit, with graphs or not."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from model.net.multimodal import MultimodalLM
from tests.npu.wheel.families import FAMILIES, GREEDY, requests_for, several_media
from tests.npu.wheel.launches import CHUNK, OfFamily
from tests.npu.wheel.twins import Request, assert_twins, load_on, run_on

pytestmark = pytest.mark.npu

Grid = tuple[int, int, int]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family(name: str, npu: torch.device, of_family: Callable[[str], OfFamily], tmp_path: Path) -> None:
    """A batch of decodes and of chunks, some of which end inside a medium."""
    path, launched = of_family(name).path, of_family(name).said
    ways = {"graphs": (npu, True), "cpu": (torch.device("cpu"), False)}
    replayed, ring0 = (
        run_on(
            load_on(path, device, torch.bfloat16), path, tmp_path / way, requests_for(FAMILIES[name]),
            tokens=CHUNK, graphs=graphs,
        )
        for way, (device, graphs) in ways.items()
    )  # fmt: skip
    assert launched.cut_media > 0 and launched.mixed > 0
    assert_twins(launched, ring0)
    assert_twins(replayed, ring0)


@pytest.mark.parametrize("name", FAMILIES)
def test_media_of_two_requests_in_one_call(
    name: str, npu: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The encoder takes all media of a step at once, each of another size where a family has sizes."""
    path, (first, second, third) = FAMILIES[name].write(tmp_path / "checkpoint"), several_media(FAMILIES[name])
    own = [first] if name == "fuyu" else [first, second]  # which takes one picture a prompt
    requests = {
        "two": Request(parts=[*own, "which?"], sampling=GREEDY),
        "one": Request(parts=["look: ", third], sampling=GREEDY),
    }
    calls: list[tuple[str, int]] = []  # device, media
    real = MultimodalLM.encode

    def encode(self: MultimodalLM, kind: str, arrays: Sequence[Tensor], grids: Sequence[Grid]) -> list[Tensor]:
        calls.append((arrays[0].device.type, len(arrays)))
        return real(self, kind, arrays, grids)

    monkeypatch.setattr(MultimodalLM, "encode", encode)
    on_npu, ring0 = (
        run_on(
            load_on(path, device, torch.bfloat16), path, tmp_path / device.type, requests,
            starts=dict.fromkeys(requests, 0), tokens=2048, encoder_tokens=1024,
        )
        for device in (npu, torch.device("cpu"))
    )  # fmt: skip
    assert calls == [("npu", len(own) + 1), ("cpu", len(own) + 1)]
    assert_twins(on_npu, ring0)
