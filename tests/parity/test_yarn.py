"""YaRN as the READMEs of Qwen2.5-VL and Qwen3-VL write it, against transformers, by logits."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.parity.harness import Layouts, OurRun, hf_logits, load_hf, load_ours, make_sample
from tests.parity.rounding import assert_logits
from tests.tables import each_of
from tests.tiny.qwen2_5_vl import write_qwen2_5_vl
from tests.tiny.qwen3_vl import write_qwen3_vl

pytestmark = pytest.mark.network

TRAINED = 64
# What the READMEs have in `rope_scaling` in place of the published one, and what may stand beside it.
READMES: list[tuple[Callable[[Path], Path], dict[str, Any], dict[str, Any]]] = [
    (write_qwen2_5_vl, {"type": "yarn", "factor": 4}, {}),
    (write_qwen2_5_vl, {"type": "yarn", "factor": 4}, {"beta_fast": 8, "beta_slow": 2, "attention_factor": 1.25}),
    (write_qwen2_5_vl, {"type": "yarn", "factor": 4}, {"truncate": False, "mscale": 0.7, "mscale_all_dim": 1.3}),
    (write_qwen3_vl, {"rope_type": "yarn", "factor": 3.0, "mrope_interleaved": True}, {}),
]
LAYOUTS: list[Layouts] = [[23], [150], [5, (1, 6, 8), 9], [90, (1, 6, 8), 40]]


def with_yarn(path: Path, kind: dict[str, Any], more: dict[str, Any]) -> Path:
    config = json.loads((path / "config.json").read_text())
    text = config.get("text_config", config)
    sections = text["rope_scaling"]["mrope_section"]
    text["rope_scaling"] = {
        **kind, "mrope_section": sections, "original_max_position_embeddings": TRAINED, **more
    }  # fmt: skip
    (path / "config.json").write_text(json.dumps(config))
    return path


@each_of(("write", "kind", "more"), READMES, ids=lambda value: getattr(value, "__name__", str(value)))
def test_logits_are_those_of_transformers(
    write: Callable[[Path], Path], kind: dict[str, Any], more: dict[str, Any], tmp_path: Path
) -> None:
    path = with_yarn(write(tmp_path / "yarn"), kind, more)
    ours, theirs = load_ours(path), load_hf(path)
    for layout in LAYOUTS:
        sample = make_sample(path, layout)
        assert_logits(ours, sample, hf_logits(theirs, sample, path))


def test_a_short_prompt_is_changed_too(tmp_path: Path) -> None:
    """The factor holds for all prompts, as in the published code: whatever their length."""
    plain = write_qwen3_vl(tmp_path / "plain")
    sample = make_sample(plain, [23])
    before = OurRun(load_ours(plain)).whole(sample)
    path = with_yarn(plain, {"rope_type": "yarn", "factor": 3.0, "mrope_interleaved": True}, {})
    assert not torch.allclose(OurRun(load_ours(path)).whole(sample), before, atol=1e-3)
