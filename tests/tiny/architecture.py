"""Prints what transformers knows of an architecture: its files, defaults, tensors, and how the hub's names differ.

python -m tests.tiny.architecture LlavaForConditionalGeneration
"""

import inspect
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.conversion_mapping import get_checkpoint_conversion_mapping


def files(kind: Any, model: torch.nn.Module) -> Iterator[str]:
    """Of the published code: what configures and prepares, and each network with its classes."""
    for path in sorted(Path(inspect.getfile(kind)).parent.glob("*.py")):
        if not path.name.startswith(("__", "modeling", "modular")):
            yield str(path)
    classes: dict[str, set[str]] = {}
    for part in model.modules():
        if type(part).__module__.startswith("transformers.models."):
            classes.setdefault(inspect.getfile(type(part)), set()).add(type(part).__name__)
    for file, names in classes.items():
        yield f"{file}: {', '.join(sorted(names))}"


def tensors(model: torch.nn.Module) -> Iterator[str]:
    """Names of transformers 5 and shapes; `*` for the numbers of layers, and how many there are."""
    found = Counter((re.sub(r"\.\d+\.", ".*.", name), tuple(part.shape)) for name, part in model.state_dict().items())
    for (name, shape), n in found.items():
        yield f"{name} {list(shape)}" + (f" x {n}" if n > 1 else "")


def hub_names(model_type: str) -> Iterator[str]:
    """Rules that lead from names on the hub to those of transformers 5."""
    for rule in get_checkpoint_conversion_mapping(model_type) or []:
        yield f"{', '.join(rule.source_patterns)} -> {', '.join(rule.target_patterns)}"


def defaults(values: dict[str, Any], indent: str = "") -> Iterator[str]:
    """Keys of config.json without those that every class has."""
    usual = transformers.PretrainedConfig().to_dict().keys() - {"tie_word_embeddings", "model_type"}
    for key, value in values.items():
        if isinstance(value, dict) and "model_type" in value:
            yield f"{indent}{key}:"
            yield from defaults(value, f"{indent}    ")
        elif key not in usual:
            yield f"{indent}{key}: {json.dumps(value, default=str)}"


def main(name: str) -> None:
    kind = getattr(transformers, name)
    config = kind.config_class()
    with torch.device("meta"):
        model = kind(config)
    for title, lines in {
        "files": files(kind, model),
        "tensors, with the class's default sizes": tensors(model),
        "names on the hub -> these names": hub_names(config.model_type),
        "tied": model.all_tied_weights_keys,
        "defaults of config.json": defaults(config.to_dict()),
    }.items():
        print(f"# {title}", *lines, "", sep="\n")


if __name__ == "__main__":
    main(sys.argv[1])
