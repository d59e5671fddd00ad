"""Mistakes that are easily made with graphs, each planted into model/staging/graphs.py and caught by a test of them.

Most of them give a wrong answer on an NPU, or make it wait for ever.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import pytest
import torch
from torch import Tensor

from model.engine.kv_blocks import CacheSize
from model.net.decoder import LayerInputs
from model.net.multimodal import MultimodalLM
from model.ops import npu_rules as rules
from model.ops.npu import NpuOps
from model.staging.graphs import DecodeGraphs, GraphError, _Captured
from model.staging.layout import Padding
from tests.npu import test_graphs as ring0
from tests.npu.planted_calls import (
    Plant,
    cache_of_anything,
    captured_with,
    half_a_workspace,
    packed_whatever_the_heads,
    read_before_the_update,
    update_of_another_graph,
    updated_with,
    workspace_as_it_comes,
)
from tests.tables import each_of

pytestmark = pytest.mark.network

OTHER_NUMBERS = AssertionError
V2_NAMES = {"actual_seq_lengths": "actual_seq_qlen", "actual_seq_lengths_kv": "actual_seq_kvlen"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    name: str
    plant: Plant
    raises: type[Exception]
    says: str
    check: Callable[[MultimodalLM], None] = ring0.check_lengths
    caught_by: str = "test_graphs.py::test_lengths_bases_and_scales"


def without_update(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_Captured, "update", lambda self, kv_lens: None)


def tables_of_its_own(patch: pytest.MonkeyPatch) -> None:
    """The captured call reads a copy of the tables: no step that is packed later reaches it."""
    real = NpuOps.graph_attention

    def graph_attention(self: NpuOps, tables: Tensor, block_size: int, beside: Any) -> Any:
        return real(self, tables.clone(), block_size, beside)

    patch.setattr(NpuOps, "graph_attention", graph_attention)


def without_fence(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_Captured, "updates_behind", lambda self, replayed: None)


def names_of_v2(patch: pytest.MonkeyPatch) -> None:
    """At replays alone: an unknown argument of the captured call itself would be refused by its schema."""

    def capture(self: Any, module: Any, pool: Any) -> Any:
        found, update = real(self, module, pool), self._attend.update
        self._attend.update = lambda lens: {V2_NAMES[name]: given for name, given in update(lens).items()}
        return found

    real = _Captured.capture
    patch.setattr(_Captured, "capture", capture)


def unchecked_names_of_v2(patch: pytest.MonkeyPatch) -> None:
    names_of_v2(patch)
    patch.setattr(_Captured, "_check_names", lambda self, lengths: None)


def padding_on_a_live_slot(patch: pytest.MonkeyPatch) -> None:
    write = Padding.write
    patch.setattr(Padding, "write", lambda self, host, first: write(replace(self, block=0), host, first))


def reserved_block_handed_out(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CacheSize, "usable", property(lambda self: self.n_blocks))


def freed_after_the_capture(patch: pytest.MonkeyPatch) -> None:
    """The graph's own angles are dropped, and others take their name."""

    def capture(self: Any, module: Any, pool: Any) -> Any:
        found = real(self, module, pool)
        self._angles = tuple(angles.clone() for angles in self._angles)
        return found

    real = _Captured.capture
    patch.setattr(_Captured, "capture", capture)


def frozen_base(patch: pytest.MonkeyPatch) -> None:
    """Angles are computed inside of the graph: from its positions, but by the base of the capture."""

    def network(self: Any) -> Tensor:
        model, batch = self._model, self._batch
        step = LayerInputs(
            angles=model.rotation(batch).angles, query_scale=self._scales, slots=batch.slots, attend=self._attend
        )
        found: Tensor = model.decoder(model.embeddings(batch.ids), self._kv, step, batch.sample_rows)
        return found

    patch.setattr(_Captured, "_network", network)


def frozen_scales(patch: pytest.MonkeyPatch) -> None:
    take = _Captured.take
    patch.setattr(_Captured, "take", lambda self, batch, rotation: take(self, batch, replace(rotation, scales=None)))


def another_width(patch: pytest.MonkeyPatch) -> None:
    """Tables as wide as the step needs them."""
    padding_for = DecodeGraphs.padding_for

    def narrow(self: DecodeGraphs, sequences: int, table_blocks: int) -> Padding | None:
        padding = padding_for(self, sequences, table_blocks)
        return padding and replace(padding, width=3)

    patch.setattr(DecodeGraphs, "padding_for", narrow)


def blocking_call(patch: pytest.MonkeyPatch) -> None:
    network = _Captured._network

    def reads_back(self: Any) -> Tensor:
        assert self._batch.ids.sum().item() >= 0
        return network(self)

    patch.setattr(_Captured, "_network", reads_back)


def launched_attention(patch: pytest.MonkeyPatch) -> None:
    """What steps launch one by one is captured: nothing of it could be updated."""

    def graph_attention(self: Any, tables: Tensor, block_size: int, beside: Any) -> Any:
        ones: Sequence[int] = [1] * len(tables)
        return self.plan_attention(ones, ones, tables, block_size)

    from model.ops.npu import _PagedAttention

    patch.setattr(NpuOps, "graph_attention", graph_attention)
    patch.setattr(_PagedAttention, "operator", "npu_fused_infer_attention_score.out", raising=False)


RULE = rules.RuleError
MISTAKES = (
    Mistake(
        name="sparse_mode 2", plant=captured_with(lambda given: {**given, "sparse_mode": 2}),
        raises=RULE, says="sparse_mode, 0 without a mask, 2",
    ),
    Mistake(
        name="a mask beside one token each",
        plant=captured_with(lambda given: {**given, "atten_mask": torch.ones(2048, 2048), "sparse_mode": 3}),
        raises=RULE, says="atten_mask, none beside one new token each",
    ),
    Mistake(
        name="lengths cut to the first", plant=updated_with(lambda lengths: lengths[:1]),
        raises=Exception, says="507015|as many as actual_seq_lengths",
    ),
    Mistake(
        name="lengths summed up", plant=updated_with(lambda lengths: list(accumulate(lengths))),
        raises=Exception, says="TokenEvent|507015|a column for each block",
    ),
    Mistake(
        name="lengths of the step before", plant=updated_with(lambda lengths: [max(n - 1, 1) for n in lengths]),
        raises=OTHER_NUMBERS, says="TokenEvent",
    ),
    Mistake(
        name="scale of the padded head",
        plant=captured_with(lambda given: {**given, "scale": given["out"][0].shape[-1] ** -0.5}),
        check=ring0.check_padded, caught_by="test_graphs.py::test_heads_that_are_padded",
        raises=OTHER_NUMBERS, says="TokenEvent",
    ),
    Mistake(
        name="no scale", plant=captured_with(lambda given: {**given, "scale": 1.0}),
        raises=OTHER_NUMBERS, says="TokenEvent",
    ),
    Mistake(
        name="packed tokens whose heads share no keys", plant=packed_whatever_the_heads,
        raises=Exception, says="no place in a graph|Counter",
    ),
    Mistake(name="NaN behind a sequence's end", plant=cache_of_anything, raises=Exception, says="TokenEvent|Counter"),
    Mistake(name="half a workspace", plant=half_a_workspace, raises=Exception, says="as large as was said|50\\d{4}"),
    Mistake(name="a workspace of another dtype", plant=workspace_as_it_comes, raises=RULE, says="workspace, uint8"),
    Mistake(
        name="update of another graph", plant=update_of_another_graph,
        raises=RuntimeError, says="107020|507011",
    ),
    Mistake(name="read before the update", plant=read_before_the_update, raises=RuntimeError, says="107020"),
    Mistake(name="update left out", plant=without_update, raises=RuntimeError, says="107020"),
    Mistake(name="update without a fence", plant=without_fence, raises=RuntimeError, says="507011"),
    Mistake(name="update with v2's names", plant=names_of_v2, raises=GraphError, says="no .'actual_seq_kvlen'"),
    Mistake(name="v2's names, not checked", plant=unchecked_names_of_v2, raises=OTHER_NUMBERS, says="TokenEvent"),
    Mistake(name="padding on a live slot", plant=padding_on_a_live_slot, raises=OTHER_NUMBERS, says="TokenEvent"),
    Mistake(
        name="reserved block handed out", plant=reserved_block_handed_out,
        check=ring0.check_full_cache, caught_by="test_graphs.py::test_a_full_cache",
        raises=OTHER_NUMBERS, says="0, 1, 2, 3, 4, 5|TokenEvent",
    ),
    Mistake(
        name="captured buffer freed", plant=freed_after_the_capture,
        raises=Exception, says="507011|507015|TokenEvent",
    ),
    Mistake(name="tables of its own", plant=tables_of_its_own, raises=Exception, says="TokenEvent|Counter"),
    Mistake(name="base frozen", plant=frozen_base, raises=OTHER_NUMBERS, says="TokenEvent"),
    Mistake(name="scales frozen", plant=frozen_scales, raises=OTHER_NUMBERS, says="TokenEvent"),
    Mistake(name="another table width", plant=another_width, raises=GraphError, says="block_tables .* is not where"),
    Mistake(name="blocking call in a capture", plant=blocking_call, raises=RuntimeError, says="107027"),
    Mistake(
        name="attention that cannot be updated", plant=launched_attention,
        raises=GraphError, says="captured 0 calls",
    ),
)  # fmt: skip

model = ring0.model


@pytest.fixture(scope="module")
def compared(model: MultimodalLM) -> MultimodalLM:
    """The model, whose answers without graphs are known before anything is planted."""
    ring0.launched_one_by_one(model, ring0.LENGTHS)
    return model


@each_of("mistake", MISTAKES, [mistake.name for mistake in MISTAKES])
def test_a_planted_mistake_is_caught(mistake: Mistake, compared: MultimodalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check passes without it: test_graphs.py calls the same one."""
    mistake.plant(monkeypatch)
    with pytest.raises(mistake.raises, match=mistake.says):
        mistake.check(compared)
