"""Looks at the checkpoint that `serve` would read: its config.json, and whether its weights are there and whole."""

from configs.checkpoint import Checkpoint, CheckpointError
from configs.serve import ModelConfig
from model.registry import family_of
from model.weight_files import read_table, weight_files
from server.doctor.finding import Finding, fail, ok, skip

_CHECK = "weights"


def finding(config: ModelConfig) -> Finding:
    """No tensor is read, and so no value of one is looked at."""
    if config.wanted is not None:
        return skip(_CHECK, "not looked at: serve downloads the model first")
    try:
        checkpoint = Checkpoint(config.path)
        family = family_of(checkpoint)
        files, _ = weight_files(checkpoint)
        tables = {path.name: read_table(path) for path in files if path.suffix != ".bin"}
    except CheckpointError as error:
        return fail(
            _CHECK,
            str(error),
            f"Download the checkpoint again to {config.path}, whole, or name another with --model; `pixelferry models` "
            "lists what is served.",
        )
    mib = sum(entry.nbytes for table in tables.values() for entry in table) >> 20
    if len(tables) < len(files):
        return ok(_CHECK, f"{family.name}, {len(files)} files by torch.save, which are there; only serve opens them")
    several = "s" if len(files) > 1 else ""
    return ok(_CHECK, f"{family.name}, {mib:,} MiB in {len(files)} file{several}, whole by their headers")
