"""What a captured attention computes, and what it may not be: on CPU tensors, from the vendor's sources."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tests.npu.references import fused_infer_attention_score, refuse_unless

WORKSPACE = 1 << 20  # bytes, as the stub of the driver says


def fused_infer_attention_score_out(
    *tensors: Tensor, workspace: Tensor | None = None, out: Sequence[Tensor], **rest: Any
) -> tuple[Tensor, Tensor]:
    """Writes into what its caller gives; the second output is left as it is."""
    refuse_unless(workspace is not None, "a captured call has a workspace of its caller's")
    assert workspace is not None
    refuse_unless(workspace.nbytes >= WORKSPACE, "the workspace is as large as was said")
    _refuse_packed(rest)
    mixed, _ = fused_infer_attention_score(*tensors, **rest)
    refuse_unless(out[0].shape == mixed.shape and out[0].dtype == mixed.dtype, "the output has the query's shape")
    out[0].copy_(mixed)
    return out[0], out[1]


def fused_infer_attention_score_workspace(query: Tensor, *_: Tensor, **given: Any) -> Tensor:
    """As many elements of the query's dtype as the workspace has bytes."""
    _refuse_packed(given)
    return torch.empty(WORKSPACE, dtype=query.dtype)


def _refuse_packed(given: Mapping[str, Any]) -> None:
    packed = given["input_layout"] == "TND" and given["num_heads"] == given["num_key_value_heads"]
    refuse_unless(not packed, "packed tokens whose heads share no keys have no place in a graph")


GRAPH_REFERENCES: dict[str, Callable[..., Any]] = {
    "npu_fused_infer_attention_score.out": fused_infer_attention_score_out,
    "_npu_fused_infer_attention_score_get_max_workspace": fused_infer_attention_score_workspace,
}
