"""Pixtral's processor as transformers has it, made to load without torchvision."""

import importlib
import sys


def let_it_load() -> None:
    """Let AutoProcessor find it.

    Of the image processor that needs torchvision its module takes one function, which the Pillow-backed twin has, too.
    """
    package = importlib.import_module("transformers.models.pixtral")
    twin = importlib.import_module(f"{package.__name__}.image_processing_pil_pixtral")
    sys.modules.setdefault(f"{package.__name__}.image_processing_pixtral", twin)
    found = importlib.import_module(f"{package.__name__}.processing_pixtral")
    package.PixtralProcessor = found.PixtralProcessor  # type: ignore[attr-defined]
