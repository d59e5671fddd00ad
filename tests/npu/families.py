"""A tiny checkpoint of each family and a run of mixed batches over it, for tests that ask whether an NPU agrees."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from model.net.multimodal import MultimodalLM
from tests.parity.golden_qwen_vl import cases, checkpoint_with, processor_at, sample_of
from tests.parity.harness import Film, Layouts, OurRun, Sample, Sound, make_sample
from tests.parity.in_rows import Rows
from tests.parity.pictures import samples_at
from tests.tiny.fuyu import write_fuyu
from tests.tiny.internvl import LARGE, write_internvl
from tests.tiny.llava import write_llava
from tests.tiny.mistral3 import write_mistral3
from tests.tiny.qwen2_5_omni import write_qwen2_5_omni
from tests.tiny.qwen2_5_vl import write_qwen2_5_vl
from tests.tiny.qwen2_audio import write_qwen2_audio
from tests.tiny.qwen2_vl import write_qwen2_vl
from tests.tiny.qwen3_vl import write_qwen3_vl
from tests.tiny.vip_llava import write_vip_llava

BLOCK_SIZE = 128
CLIP = Film(grid=(2, 4, 6), seconds=1.0)

_WRITERS: dict[str, Callable[[Path], Path]] = {
    # Trained on 64 tokens: longer prompts get another base, and scaled queries.
    "qwen_vl": partial(checkpoint_with, **cases()["seq64_image"].settings),
    "qwen2_vl": partial(write_qwen2_vl, tied=False),
    "qwen2_5_vl": write_qwen2_5_vl,
    "qwen2_audio": write_qwen2_audio,
    "qwen2_5_omni": write_qwen2_5_omni,
    "qwen3_vl": partial(write_qwen3_vl, tied=False),
    "llava": partial(write_llava, seed=1),
    "fuyu": write_fuyu,
    "vip_llava": write_vip_llava,
    "internvl": partial(write_internvl, vision=LARGE, seed=4),
    "mistral3": partial(write_mistral3, seed=1),
}
_GOLDEN = ("seq64_image", "seq64_len80", "seq64_decode_across")
_LAYOUTS: dict[str, Sequence[Layouts]] = {
    "qwen2_vl": ([3, (1, 6, 8), 19], [2, CLIP, 14], [17]),
    "qwen2_5_vl": ([3, (1, 10, 12), 19], [2, CLIP, 14], [17]),
    "qwen3_vl": ([3, (1, 6, 8), 19], [2, CLIP, 14], [17]),
    "qwen2_audio": ([3, Sound(frames=70), 19], [14, Sound(frames=33), 9], [17]),
    "qwen2_5_omni": ([3, (1, 10, 12), 9, Sound(frames=70), 9], [2, CLIP, 14], [17]),
    "llava": ([3, (1, 4, 4), 19], [2, (1, 4, 4), 14], [17]),
    "fuyu": ([3, Rows(rows=4, columns=3), 19], [Rows(rows=2, columns=6), 9], [17]),
}
FAMILIES = tuple(_WRITERS)


def write_family(name: str, path: Path) -> Path:
    """A checkpoint whose best token leads clearly at most positions.

    A random head's best two logits nearly always lie within the rounding of bfloat16. Here four rows of the head are
    ten times the others, two pairs that point to opposite sides, so that nearly every state is on the side of one.
    """
    source = _WRITERS[name](path)
    file = source / "model.safetensors"
    tensors = load_file(file)
    (key,) = (key for key in tensors if key.endswith("lm_head.weight"))
    head = tensors[key]
    length = head.norm(dim=1).mean()
    loud = torch.randperm(200, generator=torch.Generator().manual_seed(0))[:4]
    ahead = torch.nn.functional.normalize(head[loud[::2]]) * length
    head = head * 0.1
    head[loud[::2]], head[loud[1::2]] = ahead, -ahead
    tensors[key] = head
    file.unlink()  # it may be a link to the golden one
    save_file(tensors, file, metadata={"format": "pt"})
    return source


def samples_of(name: str, path: Path) -> list[Sample]:
    """Three prompts: the first begins with a medium behind three tokens or more, the last is short."""
    if name == "qwen_vl":
        host = processor_at(path)
        return [sample_of(cases()[case], host) for case in _GOLDEN]
    if name not in _LAYOUTS:
        return samples_at(path)
    return [make_sample(path, layout, seed) for seed, layout in enumerate(_LAYOUTS[name])]


def mixed_logits(model: MultimodalLM, samples: Sequence[Sample]) -> Tensor:
    """float32 [tokens of all prompts, vocab], in their order: chunks, whole prompts and decodes in the same steps.

    The first prompt is cut inside its medium, the second starts a step later, the third decodes beside both.
    """
    run = OurRun(model, BLOCK_SIZE, 8)
    first, second, third = (len(sample.ids) for sample in samples)
    work = [[5, 6, first - 15, 1, 1, 1, 1], [0, second - 3, 1, 1, 1], [6, *[1] * (third - 6)]]
    found: list[list[Tensor]] = [[] for _ in samples]
    for step in range(max(map(len, work))):
        due = [(key, samples[key], parts[step]) for key, parts in enumerate(work) if step < len(parts) and parts[step]]
        for key, logits in run.step(due).items():
            found[key].append(logits)
    return torch.cat([part for parts in found for part in parts])
