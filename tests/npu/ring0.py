"""Ring 0: the operators of torch_npu on CPU tensors, so that model/ops/npu.py runs where there is no NPU.

Their schemas are defined in torch's own dispatcher, so that an unknown argument or a wrong type is an error. The
references compute, the table says the shapes. Where the real torch_npu is loaded its operators stay as they are.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from tests.npu.graph_references import GRAPH_REFERENCES
from tests.npu.references import REFERENCES
from tests.npu.schemas import GRAPH_SCHEMAS, OUTPUTS, SCHEMAS

_LIBRARIES: list[torch.library.Library] = []  # an operator lives as long as the library that defined it


@cache
def define_operators() -> None:
    """Once per process; whoever calls it again finds them defined."""
    if hasattr(torch.ops.npu, "npu_fused_infer_attention_score"):
        return
    library = torch.library.Library("npu", "DEF")
    for name, schema in SCHEMAS.items():
        library.define(schema)
        library.impl(name, REFERENCES[name], "CPU")
        library.impl(name, _meta(OUTPUTS[name]), "Meta")
    for name, schema in GRAPH_SCHEMAS.items():
        library.define(schema)
        library.impl(name, GRAPH_REFERENCES[name], "CPU")
    _LIBRARIES.append(library)


def _meta(outputs: Callable[..., tuple[Any, ...]]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Tensor | tuple[Tensor, ...] | None:
        made = tuple(torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in outputs(*args, **kwargs))
        return made[0] if len(made) == 1 else made or None

    return run
