"""Staging over the real torch_npu, whose copies are late; and mistakes planted in it, each caught by a check."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from model.engine import runner
from model.engine.engine import Engine
from model.engine.sampling import sampler
from model.staging import embeddings, packing, streams, transfers
from model.staging.embeddings import EmbeddingStore
from model.staging.packing import Field, Packer
from model.staging.streams import Behind, open_streams
from model.staging.transfers import Results, Uploads
from tests.npu.wheel import launches
from tests.npu.wheel.test_launches import COSTS, COUNTED
from tests.npu.wheel.twins import load_on
from tests.tiny.qwen2_vl import write_qwen2_vl

pytestmark = pytest.mark.npu

Plant = Callable[[pytest.MonkeyPatch], None]
Check = Callable[[torch.device, Path], None]


def packed_twice(npu: torch.device, root: Path) -> None:
    """What is written for the next step does not change this one, however late its copy is."""
    packer = Packer(open_streams(npu), 4096)
    first = _pack(packer, 64, 1)
    _pack(packer, 64, 2, send=False)
    assert first.tolist() == [1] * 64


def packed_three_times(npu: torch.device, root: Path) -> None:
    """The memory of a step is written again when its copy is done."""
    packer = Packer(open_streams(npu), 4096)
    first = _pack(packer, 64, 1)
    _pack(packer, 16, 2)
    _pack(packer, 64, 3, send=False)
    assert first.tolist() == [2] * 16 + [1] * 48


def uploaded_three_times(npu: torch.device, root: Path) -> None:
    """A medium is read into memory whose last medium has reached the device."""
    pool, sent = Uploads(open_streams(npu)), []
    for i in range(3):
        upload = pool.open((64,), "uint8")
        upload.array[...] = i
        sent.append(upload.send())
    assert [x.tolist() for x in sent] == [[i] * 64 for i in range(3)]


def fetched(npu: torch.device, root: Path) -> None:
    """Results are there when they are handed over."""
    value = int(torch.randint(1, 1 << 20, ()))  # that no memory holds from before
    found = Results(open_streams(npu)).fetch(
        torch.full((3,), value, device=npu), torch.full((2, 2), value + 1, device=npu)
    )
    assert [x.tolist() for x in found] == [[value] * 3, [[value + 1] * 2] * 2]


def read_back_from_the_host(npu: torch.device, root: Path) -> None:
    """What the device gave up comes back as it was, however late its copy to the host is."""
    store = EmbeddingStore[int](open_streams(npu))
    value = random.randrange(1 << 20)  # another one each time: host memory that is used again holds the last one
    store.put({0: torch.full((4,), float(value), device=npu)}, host_only={0})
    assert store.part(0, 1, 3).tolist() == [value] * 2


def costs_of_steps(npu: torch.device, root: Path) -> None:
    """A decode step with every rule, and one with a picture."""
    path = write_qwen2_vl(root / "checkpoint")
    model = load_on(path, npu, torch.bfloat16)
    sampling = msgspec.structs.replace(launches.RULES, top_k=0)  # so that top_p stands alone
    steps = {
        "decode, rules": launches._decode(model, path, root, sampling),
        "prefill, picture": launches._first_step(model, path, root, launches.PICTURE),
    }
    for name, found in steps.items():
        copies = {counted: n for counted, n in found.items() if not counted.startswith("aclnn")}
        assert copies == dict(zip(COUNTED, COSTS[name], strict=True)), name


def _pack(packer: Packer, n: int, value: int, *, send: bool = True) -> torch.Tensor:
    """One array, as the device has it."""
    packed = packer.open([Field("int64", (n,))])
    (array,) = packed.host
    assert array is not None
    array[...] = value
    (sent,) = packed.send() if send else (torch.empty(0),)
    assert sent is not None
    return sent


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    name: str
    plant: Plant
    check: Check


def _one_host(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(packing._Buffer, "next_host", lambda self: self._hosts[0].bytes)


def _unfenced(kind: type, name: str) -> Plant:
    """Memory is used again without waiting for its copy."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        real = getattr(kind, name)

        def run(self: Any) -> Any:
            self.copied = None
            return real(self)

        patch.setattr(kind, name, run)

    return plant


def _not_awaited(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(streams._Recorded, "wait", lambda self: None)


def _only_asks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(streams._Recorded, "wait", lambda self: self._event.query())


def _another_stream(patch: pytest.MonkeyPatch) -> None:
    """Copies to the host run beside the stream that reads them again, which waits for nothing."""
    real = embeddings._on_host

    def beside(given: Any, streams: Any) -> Any:
        with streams._module.stream(streams._module.Stream()):
            return real(given, streams)

    patch.setattr(embeddings, "_on_host", beside)


def _pageable(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Behind, "host_memory", lambda self, nbytes: torch.empty(nbytes, dtype=torch.uint8))


def _read_back(patch: pytest.MonkeyPatch) -> None:
    """Sampling asks the device whether the largest were enough of a vocabulary that has more."""
    real = sampler.sample
    patch.setattr(sampler, "_PREFIX", 16)
    patch.setattr(runner, "sample", lambda *given, behind: real(*given, behind=False))


def _fetched_one_by_one(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(transfers.Results, "fetch", lambda self, *tensors: [tensor.cpu().numpy() for tensor in tensors])


def _second_copy(patch: pytest.MonkeyPatch) -> None:
    """What the sampler asks for travels alone."""
    real = runner._packed_bytes
    patch.setattr(runner, "_RULES_BYTES", 0)
    patch.setattr(runner, "_packed_bytes", lambda *sizes: real(1, 1, 1))


def _pixels_by_numpy(patch: pytest.MonkeyPatch) -> None:
    def send(self: transfers.Upload) -> torch.Tensor:
        return torch.from_numpy(np.array(self.array)).to(self._streams.device)

    patch.setattr(transfers.Upload, "send", send)


def _waits_each_step(patch: pytest.MonkeyPatch) -> None:
    real = Engine.step

    def step(self: Engine) -> Any:
        torch.get_device_module("npu").synchronize()
        return real(self)

    patch.setattr(Engine, "step", step)


MISTAKES = (
    Mistake(name="one host buffer for all steps", plant=_one_host, check=packed_twice),
    Mistake(name="a step's memory reused early", plant=_unfenced(streams.HostMemory, "wait"), check=packed_three_times),
    Mistake(
        name="a medium's memory reused early",
        plant=_unfenced(streams.HostMemory, "wait"),
        check=uploaded_three_times,
    ),
    Mistake(name="results not awaited", plant=_not_awaited, check=fetched),
    Mistake(name="a wait that only asks", plant=_only_asks, check=fetched),
    Mistake(name="copies to the host on another stream", plant=_another_stream, check=read_back_from_the_host),
    Mistake(name="staging in pageable memory", plant=_pageable, check=costs_of_steps),
    Mistake(name="sampling reads back", plant=_read_back, check=costs_of_steps),
    Mistake(name="results by blocking copies", plant=_fetched_one_by_one, check=costs_of_steps),
    Mistake(name="rules in a copy of their own", plant=_second_copy, check=costs_of_steps),
    Mistake(name="pixels from pageable memory", plant=_pixels_by_numpy, check=costs_of_steps),
    Mistake(name="a wait for the device in each step", plant=_waits_each_step, check=costs_of_steps),
)
CHECKS = list(dict.fromkeys(mistake.check for mistake in MISTAKES))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_staging(check: Check, npu: torch.device, tmp_path: Path) -> None:
    check(npu, tmp_path)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_planted_mistake_is_caught(
    mistake: Mistake, npu: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake.plant(monkeypatch)
    with pytest.raises(AssertionError):
        mistake.check(npu, tmp_path)
