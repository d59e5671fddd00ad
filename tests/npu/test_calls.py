"""What NpuOps asks of the dispatcher: signatures, outputs, and nothing that an NPU computes otherwise."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from model.net.multimodal import MultimodalLM
from model.ops.base import Ops
from model.ops.npu import NpuOps
from tests.model.ops.present import PRESENT, present_ops
from tests.npu.aten import assert_none_computed_otherwise, recorded
from tests.npu.graph_references import GRAPH_REFERENCES
from tests.npu.references import REFERENCES, Refused
from tests.npu.ring0 import define_operators
from tests.npu.schemas import OUTPUTS, SCHEMAS
from tests.parity.harness import OurRun, load_over, make_sample
from tests.tables import each_of
from tests.tiny.fuyu import write_fuyu
from tests.tiny.qwen2_vl import write_qwen2_vl

pytestmark = pytest.mark.network

MOST_LAUNCHES = {"whole": 13, "padded": 15}  # of a decoder layer
MOST_WITH_LAYER_NORMS = 19
HIDDEN = {"whole": 256, "padded": 64}  # of four heads: 64 and 16 wide


def half(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).bfloat16()


def arguments() -> dict[str, tuple[tuple[Any, ...], dict[str, Any]]]:
    """One call of each operator of the table."""
    q, slots = half(5, 2, 64), torch.arange(5)
    lengths = {"actual_seq_lengths": [2, 5], "actual_seq_lengths_kv": [2, 5]}
    cache = torch.zeros(2, 128, 2, 64, dtype=torch.bfloat16)
    return {
        "npu_fused_infer_attention_score": ((q, q, q), {"input_layout": "TND", "num_heads": 2, **lengths}),
        "npu_scatter_pa_kv_cache": ((q, q, cache, cache.clone(), slots), {"cache_mode": "Norm"}),
        "npu_rms_norm": ((half(5, 8), half(8)), {"epsilon": 1e-5}),
        "npu_add_rms_norm": ((half(5, 8), half(5, 8), half(8)), {"epsilon": 1e-5}),
        "npu_rotary_mul": ((q, half(5, 1, 64).sin(), half(5, 1, 64).cos()), {}),
        "npu_swiglu": ((half(5, 8),), {}),
        "npu_fast_gelu": ((half(5, 8),), {}),
        "npu_gelu": ((half(5, 8),), {"approximate": "none"}),
    }


@each_of("name", SCHEMAS)
def test_outputs_are_those_of_the_table(name: str) -> None:
    """Of the reference, and of the kernel that knows shapes only."""
    define_operators()
    args, kwargs = arguments()[name]
    expected = OUTPUTS[name](*args, **kwargs)
    operator = getattr(torch.ops.npu, name)
    meta = [x.to("meta") if isinstance(x, Tensor) else x for x in args]
    for found in (operator(*args, **kwargs), operator(*meta, **kwargs)):
        outputs = () if found is None else (found,) if isinstance(found, Tensor) else found
        assert tuple((tuple(x.shape), x.dtype) for x in outputs) == expected


@each_of("name", SCHEMAS)
def test_an_argument_that_the_schema_lacks_is_refused(name: str) -> None:
    define_operators()
    args, kwargs = arguments()[name]
    with pytest.raises(RuntimeError, match=f"{name}.*(softmax_scale|at most)|softmax_scale"):
        getattr(torch.ops.npu, name)(*args, **kwargs, softmax_scale=1.0)


@each_of(
    "name, changed, why",
    [
        ("npu_fused_infer_attention_score", {"actual_seq_lengths": [2, 3]}, "the number of rows"),
        ("npu_fused_infer_attention_score", {"actual_seq_lengths": [4, 3]}, "cumulative"),
        ("npu_fused_infer_attention_score", {"actual_seq_lengths_kv": [5]}, "as many key lengths"),
        ("npu_fused_infer_attention_score", {"sparse_mode": 3}, "take a mask"),
        ("npu_fused_infer_attention_score", {"atten_mask": torch.zeros(1, 1, 1, 8).bool()}, "without a mask"),
        ("npu_fused_infer_attention_score", {"input_layout": "BSH"}, "layout BSH"),
        ("npu_fused_infer_attention_score", {"softmax_lse_flag": True}, "softmax_lse_flag is not part"),
        (
            "npu_fused_infer_attention_score",
            dict.fromkeys(("query", "key", "value"), half(5, 2, 64).half()),
            "share no keys are bfloat16",
        ),
        ("npu_scatter_pa_kv_cache", {"cache_mode": "PA_NZ"}, "PA_NZ"),
        ("npu_scatter_pa_kv_cache", {"slot_mapping": torch.tensor([0, 1, 2, 3, -1])}, "inside the cache"),
        ("npu_scatter_pa_kv_cache", {"slot_mapping": torch.tensor([0, 1, 2, 3, 3])}, "comes twice"),
        ("npu_add_rms_norm", {"x1": torch.empty(0, 8).half()}, "empty"),
        ("npu_rotary_mul", {"r1": torch.full((5, 1, 64), 1.5).bfloat16()}, r"\[-1, 1\]"),
        ("npu_swiglu", {"input": torch.empty(0, 8).half()}, "empty"),
    ],  # fmt: skip
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_references_refuse_what_cann_refuses(name: str, changed: dict[str, Any], why: str) -> None:
    define_operators()
    args, kwargs = arguments()[name]
    names = [argument.name for argument in getattr(torch.ops.npu, name).default._schema.arguments]
    given = dict(zip(names, args, strict=False)) | kwargs
    REFERENCES[name](**given)
    with pytest.raises(Refused, match=why):
        REFERENCES[name](**(given | changed))


@each_of(
    ("heads", "changed", "why"),
    [
        (4, {"num_key_value_heads": 4}, "share no keys have no place in a graph"),
        (4, {"workspace": torch.empty(8, dtype=torch.uint8)}, "as large as was said"),
    ],
    ids=["heads that share no keys", "a small workspace"],
)
def test_what_a_graph_may_not_capture_is_refused(heads: int, changed: dict[str, Any], why: str) -> None:
    query, cache = half(2, heads, 64), half(2, 128, 128)
    given = {
        "input_layout": "TND", "num_heads": heads, "num_key_value_heads": 2, "block_size": 128,
        "actual_seq_lengths": [1, 2], "actual_seq_lengths_kv": [1, 1],
        "block_table": torch.zeros(2, 1, dtype=torch.int32), "workspace": torch.empty(1 << 20, dtype=torch.uint8),
    }  # fmt: skip
    run = GRAPH_REFERENCES["npu_fused_infer_attention_score.out"]
    run(query, cache, cache, **given, out=[torch.empty_like(query), query.new_empty(1)])
    with pytest.raises(Refused, match=why):
        run(query, cache, cache, **(given | changed), out=[torch.empty_like(query), query.new_empty(1)])


@each_of("name", [name for name in PRESENT if name.startswith("npu")])
def test_no_operator_that_an_npu_computes_otherwise(name: str) -> None:
    check_activations_and_attention(present_ops(name))


def check_activations_and_attention(ops: Ops) -> None:
    """Networks get these from Ops alone; tests/npu/test_families.py looks at whole networks."""
    x, q = torch.ones((3, 8), dtype=ops.dtype), torch.ones((3, 2, 64), dtype=ops.dtype)
    with torch.inference_mode():
        assert_none_computed_otherwise(
            lambda: (ops.gelu(x), ops.gelu_tanh(x), ops.quick_gelu(x.clone()), ops.swiglu(x))
        )
        assert_none_computed_otherwise(lambda: (ops.segment_attention(q, q, q, [1, 2]), ops.cross_attention(q, q, q)))


@each_of("heads", MOST_LAUNCHES)
def test_launches_of_a_decoder_layer(heads: str, tmp_path: Path) -> None:
    """A prefill behind a past beside a decode: what a third layer adds to two."""
    counts = []
    for layers in (2, 3):
        path = write_qwen2_vl(tmp_path / str(layers), layers=layers, hidden=HIDDEN[heads])
        counts.append(count_launches(load_over(present_ops("npu-bfloat16"), path), path))
    assert counts[1] - counts[0] <= MOST_LAUNCHES[heads]


def test_launches_of_a_layer_with_layer_norms(tmp_path: Path) -> None:
    """Of the queries and of the keys, too: two more launches, one that joins both, and a sum before each other norm."""
    counts = []
    for layers in (2, 3):
        path = write_fuyu(tmp_path / str(layers), layers=layers, hidden=HIDDEN["whole"])
        counts.append(count_launches(load_over(present_ops("npu-bfloat16"), path), path))
    assert counts[1] - counts[0] <= MOST_WITH_LAYER_NORMS


def count_launches(model: MultimodalLM, path: Path) -> int:
    run, first, second = OurRun(model, 128, 4), make_sample(path, [9]), make_sample(path, [8], seed=1)
    run.step([(0, first, 6), (1, second, 7)])
    with recorded() as names:
        run.step([(0, first, 3), (1, second, 1)])
    return len(names)


@each_of(
    ("name", "curve"),
    [
        ("gelu", F.gelu),
        ("gelu_tanh", lambda x: F.gelu(x, approximate="tanh")),
        ("quick_gelu", lambda x: x * torch.sigmoid(1.702 * x)),
    ],
)
def test_each_activation_is_its_own_curve(name: str, curve: Callable[[Tensor], Tensor]) -> None:
    """To the last bit of bfloat16, by which alone two of them differ."""
    define_operators()
    x = torch.linspace(-6, 6, 4001).bfloat16()
    found = getattr(NpuOps(torch.device("cpu"), torch.bfloat16), name)(x)
    off = found.float() - curve(x.float()).bfloat16().float()
    assert int(off.count_nonzero()) <= len(x) // 50, "the formulas round differently here and there"
