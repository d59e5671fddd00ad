"""Which files of a checkpoint hold its weights, by their names alone: the same for a directory and for a hub's list."""

from collections.abc import Collection
from pathlib import Path

from configs.checkpoint import Checkpoint, CheckpointError, shown

# The first that is there is read, as by transformers 5.23 (modeling_utils._get_resolved_checkpoint_files).
ORDER = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")


def first_file(checkpoint: Checkpoint, held: Collection[str], where: str) -> str:
    """The weights themselves, or the index of their shards.

    held: the names of the files beside each other; where: for people, what holds them. Raises CheckpointError.
    """
    named = checkpoint.config.read(str, "transformers_weights", "")  # as transformers 5 reads it: before all others
    if named and (Path(named).name != named or named not in held):
        raise CheckpointError(f"config.json: transformers_weights is {shown(named)}, which is no file of {where}")
    first = named or next((name for name in ORDER if name in held), None)
    if first is None:
        raise CheckpointError(f"{where}: no weights here: it holds none of {', '.join(ORDER)}")
    return first


def shards(checkpoint: Checkpoint, index: str, held: Collection[str], where: str) -> list[str]:
    """The files that an index names, by name. Raises CheckpointError for a path and for one that is missing."""
    names = sorted({str(name) for name in checkpoint.file(index).read(dict, "weight_map").values()})
    for name in names:
        if Path(name).name != name:
            raise CheckpointError(f"{index}: {shown(name)} is not a file name")
        if name not in held:
            raise CheckpointError(f"{where}: {name[:200]} is missing; {index} names it")
    return names
