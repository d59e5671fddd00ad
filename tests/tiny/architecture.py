"""Prints what transformers knows of an architecture: files, processor, tensors, how the hub's names differ, defaults.

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
from transformers import PreTrainedConfig
from transformers.conversion_mapping import get_checkpoint_conversion_mapping
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES


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


def processor(model_type: str) -> Iterator[str]:
    """Its class, and what it lacks here."""
    name = PROCESSOR_MAPPING_NAMES.get(model_type)
    wants = getattr(getattr(transformers, name), "_backends", None) if name else None  # of a placeholder's class
    yield f"{name}" + (f", which wants {', '.join(wants)}: see step 2" if wants else "")


def tensors(model: torch.nn.Module) -> Iterator[str]:
    """Names of transformers 5 and shapes; `*` for the numbers of layers, and how many there are."""
    found = Counter((re.sub(r"\.\d+\.", ".*.", name), tuple(part.shape)) for name, part in model.state_dict().items())
    for (name, shape), n in found.items():
        yield f"{name} {list(shape)}" + (f" x {n}" if n > 1 else "")


def buffers(model: torch.nn.Module) -> Iterator[str]:
    """Names of what the class does not save, and other saves may hold all the same."""
    saved = model.state_dict().keys()
    yield from dict.fromkeys(re.sub(r"\.\d+\.", ".*.", name) for name, _ in model.named_buffers() if name not in saved)


def hub_names(config: PreTrainedConfig) -> Iterator[str]:
    """Rules that lead from names on the hub to those of transformers 5, the whole model's and its parts'."""
    for part in (config, *sections(config).values()):
        for rule in get_checkpoint_conversion_mapping(part.model_type) or []:
            yield f"{part.model_type}: {', '.join(rule.source_patterns)} -> {', '.join(rule.target_patterns)}"


def sections(config: PreTrainedConfig) -> dict[str, PreTrainedConfig]:
    return {key: part for key, part in vars(config).items() if isinstance(part, PreTrainedConfig)}


def other_names(config: PreTrainedConfig) -> Iterator[str]:
    """Keys that config.json may have instead."""
    for where, part in {"": config, **sections(config)}.items():
        for other, key in part.attribute_map.items():
            yield f"{where}{'.' * bool(where)}{other}: {key}"


def sparse_defaults(config: PreTrainedConfig) -> Iterator[str]:
    """Of sections that are there but lack keys, where their own class says something else than the whole model's."""
    for where, part in sections(config).items():
        own, whole = type(part)().to_dict(), part.to_dict()
        for key in sorted(own.keys() & whole.keys()):
            if own[key] != whole[key]:
                yield f"{where}.{key}: {json.dumps(own[key], default=str)}"


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
        "processor": processor(config.model_type),
        "tensors, with the class's default sizes": tensors(model),
        "buffers, which other saves may hold": buffers(model),
        "names on the hub -> these names": hub_names(config),
        "tied": model.all_tied_weights_keys,
        "other names of keys: the key": other_names(config),
        "defaults of config.json, of sections that it lacks, too": defaults(config.to_dict()),
        "defaults of sections that are there": sparse_defaults(config),
    }.items():
        print(f"# {title}", *lines, "", sep="\n")


if __name__ == "__main__":
    main(sys.argv[1])
