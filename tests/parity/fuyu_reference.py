"""Fuyu's processor as transformers has it, made to work without torchvision."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from tests.parity.theirs import transformers


def load_processor(path: Path) -> Any:
    """The processor of the directory `path`."""
    tokenizer = transformers.TokenizersBackend.from_pretrained(str(path))
    return transformers.FuyuProcessor(image_processor=_pictures().from_pretrained(str(path)), tokenizer=tokenizer)


@cache
def _pictures() -> Any:
    """Its class, whose own patchify_image takes arrays, and is given tensors."""

    class Pictures(transformers.FuyuImageProcessorPil):  # type: ignore[misc]
        def patchify_image(self, image: Any, patch_size: Any = None) -> torch.Tensor:
            return torch.as_tensor(super().patchify_image(np.asarray(image), patch_size))

    return Pictures


def their_prompt(processor: Any, text: str, image: Image.Image) -> tuple[list[int], torch.Tensor]:
    """Ids, and patches float32 [n, (y, x, channel)]."""
    out = processor(text=text, images=[image], return_tensors="pt", return_legacy_image_output=False)
    patches: torch.Tensor = out["pixel_values"].reshape(-1, out["pixel_values"].shape[-1]).float()
    return out["input_ids"][0].tolist(), patches
