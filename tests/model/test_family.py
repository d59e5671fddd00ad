"""Every family of the registry is what it declares: its media, its features, its largest items, pads and positions."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from configs.checkpoint import Checkpoint, CheckpointError
from configs.serve import MediaConfig
from model.engine.messages import LargestItem
from model.engine.profile import encode_dummy
from model.family import Family
from model.registry import families, family_of
from server.requests.sampling import model_length
from tests.e2e.audio_chats import IMAGE, SILENT, SOUND, TALKIE
from tests.e2e.running import data_url, picture
from tests.npu.families import FAMILIES as ON_NPU
from tests.parity.harness import load_ours
from tests.tables import each_of
from tests.tiny.families import NAMES, WRITERS
from tests.tiny.qwen2_vl import write_json
from tests.tokenization.worker_harness import WorkerHarness, worker_harness_at
from tokenization.chat.parts import Kind
from tokenization.messages import Prepared
from tokenization.placeholders import plain_positions
from tokenization.processor import Modality

pytestmark = pytest.mark.network

SMALL = MediaConfig(max_pixels=56 * 112, max_video_pixels=200_704, max_frames=8, max_audio_seconds=2)
LENGTH = 2048
DECODER = {"max_position_embeddings", "num_attention_heads"}  # keys of its section, and of no other
OTHER = {"image": data_url(picture(300, 40))}
MEDIA: dict[Kind, dict[str, Any]] = {"image": IMAGE, "video": SILENT, "audio": SOUND}


@dataclass(frozen=True)
class Case:
    path: Path
    family: Family
    harness: WorkerHarness

    def counted(self, medium: dict[str, Any]) -> Prepared:
        """One medium and a question, as a worker lays them out."""
        return self.harness.run([medium, {"text": "What is it?"}], count_only=True)


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Case]]:
    """A checkpoint of each family, and a worker's half of it."""
    with ExitStack() as stack:
        found = {}
        for name in NAMES:
            path = WRITERS[name](tmp_path_factory.mktemp(name))
            family = family_of(Checkpoint(path))
            host = family.host(Checkpoint(path), SMALL.max_pixels)
            harness = stack.enter_context(worker_harness_at(tmp_path_factory.mktemp("shm") / name, host))
            found[name] = Case(path, family, harness)
        yield found


def test_every_family_has_a_tiny_checkpoint_of_its_own() -> None:
    assert tuple(WRITERS) == NAMES and len(set(NAMES)) == len(NAMES)


def test_who_is_served_on_an_npu_was_proven_there() -> None:
    assert set(ON_NPU) == {family.name for family, _ in families() if "npu" in family.devices}


@each_of("name", NAMES)
def test_a_device_that_is_not_declared_is_refused(cases: dict[str, Case], name: str) -> None:
    family = cases[name].family
    family.check_device("cpu")
    with pytest.raises(CheckpointError, match=r"--device npu: .* is not served there \(it is on cpu, cuda\)"):
        replace(family, devices=("cpu", "cuda")).check_device("npu")


@each_of("name", NAMES)
def test_what_a_checkpoint_takes_is_what_its_family_declares(cases: dict[str, Case], name: str) -> None:
    family, harness = cases[name].family, cases[name].harness
    host = harness.processor
    assert host.modalities == family.modalities and host.placeholders.keys() == family.modalities.keys()
    assert host.features <= family.features


@each_of("name", NAMES)
def test_the_largest_items_are_what_the_network_encodes(cases: dict[str, Case], name: str) -> None:
    path, harness = cases[name].path, cases[name].harness
    model = load_ours(path)
    found = {item.kind: item for item in harness.processor.largest(SMALL, LENGTH)}
    assert found.keys() == harness.processor.modalities.keys() == model.placeholder_ids.keys()
    for kind, item in found.items():
        assert model.encoders[kind].input_shape(item.grid) == item.shape
        assert str(model.encoders[kind].dtype) == f"torch.{item.dtype}"
        dummy = LargestItem(kind=kind, grid=item.grid, n_tokens=item.n_tokens, fixed=False)
        assert encode_dummy(model, dummy)[0].shape == (item.n_tokens, model.media_width)


@each_of("name", NAMES)
def test_several_media_of_one_call_are_those_of_one_by_one(cases: dict[str, Case], name: str) -> None:
    path, harness = cases[name].path, cases[name].harness
    model = load_ours(path)
    for kind, item in {item.kind: item for item in harness.processor.largest(SMALL, LENGTH)}.items():
        rng = np.random.default_rng(7)
        arrays = [torch.from_numpy(rng.integers(0, 256, item.shape).astype(item.dtype)) for _ in range(3)]
        alone = [model.encode(kind, [array], [item.grid])[0] for array in arrays]
        assert not torch.allclose(alone[0], alone[1])
        for found, expected in zip(model.encode(kind, arrays, [item.grid] * 3), alone, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))


@each_of("name", NAMES)
def test_one_size_for_all_where_that_is_declared(cases: dict[str, Case], name: str) -> None:
    family, counted = cases[name].family, cases[name].counted
    for kind, modality in family.modalities.items():
        if kind == "image":
            grids = {counted(medium).media[0].grid for medium in (IMAGE, OTHER)}
            assert modality.fixed == (len(grids) == 1)
        else:
            assert not modality.fixed, "no family has such"


@each_of("name", NAMES)
def test_bounds_of_pixels_are_told_where_sizes_differ(cases: dict[str, Case], name: str) -> None:
    """Without them a server would cap pictures below what the checkpoint asks for."""
    path, family = cases[name].path, cases[name].family
    image = family.modalities.get("image")
    assert (image is not None and not image.fixed) == (family.pixels(Checkpoint(path)) is not None)


@each_of("name", NAMES)
def test_the_decoders_keys_are_where_a_server_looks(cases: dict[str, Case], name: str, tmp_path: Path) -> None:
    """Else its length and its end tokens would be others than the checkpoint's, without a word."""
    path, family = cases[name].path, cases[name].family
    whole = json.loads((path / "config.json").read_text(encoding="utf-8"))
    (decoder,) = [values for values in sections_of(whole) if DECODER <= values.keys()]
    decoder["max_position_embeddings"] = 1234
    write_json(tmp_path / "config.json", whole)
    assert model_length(family.config(Checkpoint(tmp_path)), None) == 1234


def sections_of(values: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield values
    for inner in values.values():
        if isinstance(inner, dict):
            yield from sections_of(inner)


@each_of("name", NAMES)
def test_pads_lie_as_declared(cases: dict[str, Case], name: str) -> None:
    family, harness, counted = cases[name].family, cases[name].harness, cases[name].counted
    for kind, modality in family.modalities.items():
        done = counted(MEDIA[kind])
        (item,) = done.media
        pads = np.flatnonzero(done.input_ids == harness.processor.placeholders[kind])
        assert pads.tolist() == [at for start, n in item.spans for at in range(start, start + n)]
        if modality.expansion == "rows":
            _, rows, columns = item.grid  # of patches, of which a token may have several along each side
            (n,), merge = {n for _, n in item.spans}, rows // len(item.spans)
            assert (len(item.spans) * merge, n * merge) == (rows, columns)
            assert len({int(done.input_ids[start + n]) for start, n in item.spans[:-1]}) == 1
        elif modality.expansion in ("frames", "numbered"):
            assert len(item.spans) == item.grid[0] > 1 and len({n for _, n in item.spans}) == 1
        else:
            assert len(item.spans) == 1
        assert (modality.expansion == "turns") == (kind == "video" and "audio_in_video" in family.features)
        if modality.expansion == "turns":
            seen, heard = counted(TALKIE).media
            assert len(seen.spans) > 1 < len(heard.spans)


@each_of("name", NAMES)
def test_positions_are_as_declared(cases: dict[str, Case], name: str) -> None:
    family, counted = cases[name].family, cases[name].counted
    for kind, modality in family.modalities.items():
        done = counted(MEDIA[kind])
        plain = np.array_equal(done.positions, plain_positions(len(done.input_ids))[0]) and done.position_delta == 0
        assert plain == (modality.positions == "text")
        if not plain:
            steps = np.diff(np.unique(done.positions[0, slice_of(done)]))
            assert modality.positions == ("grid" if (steps == 1).all() else "time")


def slice_of(done: Prepared) -> slice:
    start, n = done.media[0].spans[0]
    return slice(start, start + n)


@each_of("name", NAMES)
def test_more_items_than_a_family_takes(cases: dict[str, Case], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The item that is too much is named; a family without a bound of its own is given one."""
    family, harness = cases[name].family, cases[name].harness
    for kind, modality in family.modalities.items():
        most = modality.most or 2
        bounded: dict[Kind, Modality] = {**family.modalities, kind: replace(modality, most=most)}
        harness.asked.clear()
        monkeypatch.setattr(harness.processor, "modalities", bounded)
        error = harness.refused([{"text": "a"}, *[MEDIA[kind]] * (most + 1)])
        assert error.param == f"inputs[{most + 1}].{kind}"
        assert f"holds {most + 1} media items of kind {kind}, this model takes at most {most}" in error.message
        harness.run([MEDIA[kind]] * most, count_only=True)
