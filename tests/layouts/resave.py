"""Loads the directories that it is given with one release of transformers, and saves them again: a script by itself.

Run by `make resaved` in an environment of that release, which has torchvision: the project's own has none, and another
release. What it writes is small: the JSON files and templates as that release writes them, and the names of tensors.

    python tests/layouts/resave.py OUT DIRECTORY...
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

# torchvision's own operators need a torch with CUDA; nothing here calls them, but its import wants them to be known.
OPERATORS = torch.library.Library("torchvision", "DEF")
for _name in ("nms", "qnms"):
    OPERATORS.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

import transformers  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from transformers import AutoConfig, AutoProcessor  # noqa: E402

KEPT_APART = ("tokenizer.json", "vocab.json", "merges.txt")  # the tiny tokenizer is written by directories.py


def main(out: Path, directories: list[Path]) -> None:
    target = out / transformers.__version__
    target.mkdir(parents=True, exist_ok=True)
    for directory in directories:
        if not hasattr(transformers, class_name(directory)):
            print(transformers.__version__, directory.name, "is not known to this release")
            continue
        with tempfile.TemporaryDirectory() as name:
            saved = Path(name)
            model_of(directory).save_pretrained(saved)
            AutoProcessor.from_pretrained(str(directory)).save_pretrained(saved)
            found = described(directory, saved)
        (target / f"{directory.name}.json").write_text(as_text(found), encoding="utf-8")
        print(transformers.__version__, directory.name, *found["files"])


def as_text(found: dict[str, Any]) -> str:
    """JSON with a line for each file."""
    lines = ",\n".join(
        f"  {json.dumps(name)}: {json.dumps(content, ensure_ascii=False)}" for name, content in found["files"].items()
    )
    return f'{{"files": {{\n{lines}\n}},\n"tensors": {json.dumps(found["tensors"])}}}\n'


def model_of(directory: Path) -> Any:
    config = AutoConfig.from_pretrained(str(directory))
    kind = getattr(transformers, class_name(directory))
    if config.model_type == "qwen2_5_omni":
        config.enable_audio_output = False  # what speaks has no tiny weights
    return kind.from_pretrained(str(directory), config=config, torch_dtype=torch.float32)


def class_name(directory: Path) -> str:
    """The class of a directory's model: config.json may name one that was renamed since."""
    name: str = json.loads((directory / "config.json").read_text())["architectures"][0]
    return {"Qwen2_5OmniModel": "Qwen2_5OmniForConditionalGeneration"}.get(name, name)


def described(directory: Path, saved: Path) -> dict[str, Any]:
    """The text files in `saved`, and the names of its tensors. Raises RuntimeError where one was not loaded."""
    files: dict[str, Any] = {}
    for file in sorted(saved.rglob("*")):
        name = str(file.relative_to(saved))
        if file.is_dir() or file.suffix in (".safetensors", ".pt") or name in KEPT_APART:
            continue
        text = file.read_text(encoding="utf-8")
        files[name] = json.loads(text) if file.suffix == ".json" else text
    before, after = tensors(directory), tensors(saved)
    for name, tensor in after.items():
        if name not in before or not torch.equal(before[name], tensor):
            raise RuntimeError(f"{directory.name}: {name} is not the tensor that was loaded")
    return {"files": files, "tensors": sorted(after)}


def tensors(directory: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for file in sorted(directory.glob("*.safetensors")):
        found.update(load_file(file))
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(argument) for argument in sys.argv[2:]])
