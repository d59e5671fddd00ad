"""Looks at the checkpoint that `serve` would read: its config.json, and whether its weights are there and whole."""

from configs.checkpoint import Checkpoint, CheckpointError
from configs.quantised import refuse_quantised
from configs.serve import ModelConfig
from configs.weight_files import read_table, weight_files
from server.doctor.finding import Finding, fail, ok, skip

_CHECK = "weights"


def finding(config: ModelConfig) -> Finding:
    """No tensor is read, and whether the architecture is served is not asked: `pixelferry models` lists those."""
    if config.wanted is not None:
        return skip(_CHECK, "not looked at: serve downloads the model first")
    try:
        checkpoint = Checkpoint(config.path)
        architecture = checkpoint.architecture
        refuse_quantised(checkpoint)
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
        return ok(_CHECK, f"{architecture}, {len(files)} files by torch.save, which are there; only serve opens them")
    several = "s" if len(files) > 1 else ""
    return ok(_CHECK, f"{architecture}, {mib:,} MiB in {len(files)} file{several}, whole by their headers")
