"""What is right, computed in float64 by others than this code and stored: small cases of every operation, and angles.

tests/model/selftest/reference_outputs.py computes it. So an error of the specification itself has a row of its own,
also on a CPU, where the specification is what is tried.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from configs.checkpoint import Checkpoint
from configs.settings import EMBEDDED_MODEL
from model.forward_batch import ForwardBatch
from model.ops.base import Ops
from model.registry import family_of
from model.selftest.attention_cases import small_attention_cases
from model.selftest.cases import Call, Case, Inputs, small_cases
from model.weights import Weights

FILE = Path(__file__).with_name("known.npz")
IDS, LOGPROBS = "demo model/ids", "demo model/logprobs"  # of a prompt with a picture: int64 [n], float32 [n - 1]
_POSITIONS = 65  # few: a float32 angle is exact to its position times 1e-7


def known_cases() -> list[Case]:
    """Cases with what is expected of them. Inputs are numbers of every half-precision dtype."""
    arrays = stored()

    def known(case: Case) -> Case:
        inputs = {name.rpartition("/")[2]: x for name, x in arrays.items() if name.startswith(f"{label(case)}/in/")}
        expected = [x for name, x in arrays.items() if name.startswith(f"{label(case)}/out/")]  # in their order
        return dataclasses.replace(case, draw=lambda _: dict(inputs), expected=tuple(expected))

    return [known(case) for case in unknown_cases()]


def unknown_cases() -> Iterator[Case]:
    """The same, without what is stored."""
    yield from small_cases()
    yield from small_attention_cases()
    yield Case(op="rope", name=f"{_POSITIONS} positions of the demo model", draw=_positions, bind=_bind_rope)


def label(case: Case) -> str:
    return f"{case.op}, {case.name}"


def stored() -> dict[str, Tensor]:
    with np.load(FILE) as file:
        arrays = {name: torch.from_numpy(file[name]) for name in file.files}
    return {name: x.float() if x.is_floating_point() else x for name, x in arrays.items()}


def _positions(_: torch.Generator) -> dict[str, Tensor]:
    """Time, height and width apart."""
    at = torch.arange(_POSITIONS)
    return {"positions": torch.stack([at, at.flip(0), at * 7 % _POSITIONS])}


def _bind_rope(ops: Ops, inputs: Inputs) -> Call:
    """Of the demo model as an engine builds it."""
    checkpoint = Checkpoint(EMBEDDED_MODEL)
    family = family_of(checkpoint)
    weights = Weights(checkpoint, family.renames, ops.dtype, ops.device, family.skips)
    rope, none = family.build(checkpoint, weights, ops).rope, torch.empty(0, dtype=torch.int64)
    batch = ForwardBatch(
        ids=none, positions=inputs["positions"], media_rows=none, media_embeds=None, slots=none, block_tables=none,
        q_lens=(_POSITIONS,), kv_lens=(_POSITIONS,), sample_rows=none, prompt_lens=(_POSITIONS,),
    )  # fmt: skip
    return lambda: rope.angles(batch)
