"""What a causal mask costs decodes, which see the same without one: attention's operator called in both ways."""

import functools
from collections.abc import Mapping

import torch
from torch import Tensor

from model.ops.npu import paged_attention
from model.ops.npu_rules import CAUSAL_MASK
from model.selftest.attention_cases import BLOCK
from model.selftest.operators import judged, microseconds
from model.selftest.rows import CaseResult
from model.selftest.teller import Teller

_NAME = "mask of decodes"
_HEADS, _KV_HEADS, _DIM = 28, 4, 128


@torch.inference_mode()
def check_masks(tell: Teller, device: torch.device, rows: int, lengths: tuple[int, ...], repeats: int) -> None:
    """rows: sequences of one new token each; lengths: of all of them in the cache."""
    if device.type != "npu":
        tell.skip(_NAME, "not here: attention takes a mask on NPUs alone")
        return
    for length in lengths:
        case = f"{rows} rows of {length:,} tokens"
        tell.attempt(
            _NAME, functools.partial(_compared, tell.section, device, rows, length, case, repeats), case, "bfloat16"
        )


def _compared(section: str, device: torch.device, rows: int, length: int, case: str, repeats: int) -> CaseResult:
    width = -(-length // BLOCK)

    def drawn(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.bfloat16, device=device).normal_()

    query = drawn(rows, _HEADS, _DIM)
    key, value = (drawn(rows * width, BLOCK, _KV_HEADS * _DIM) for _ in range(2))
    table = torch.arange(rows * width, dtype=torch.int32, device=device).view(rows, width)
    mask = torch.ones(CAUSAL_MASK, CAUSAL_MASK, dtype=torch.int8).triu_(1).to(device)

    def attend(seen: Mapping[str, object]) -> Tensor:
        arguments = {
            "actual_seq_lengths": list(range(1, rows + 1)), "actual_seq_lengths_kv": [length] * rows,
            "block_table": table, "block_size": BLOCK, **seen,
        }  # fmt: skip
        return paged_attention(query, key, value, _KV_HEADS, arguments)

    masked = functools.partial(attend, {"atten_mask": mask, "sparse_mode": 3})
    bare = functools.partial(attend, {"sparse_mode": 0})
    found, expected = [bare().cpu()], [masked().cpu()]
    with_it, without = (microseconds(run, device, repeats) for run in (masked, bare))
    figures = {"us with a mask": with_it, "us without": without}
    row = CaseResult(section=section, name=_NAME, case=case, verdict="fail", microseconds=without, figures=figures)
    return judged(row, found, expected, torch.bfloat16)
