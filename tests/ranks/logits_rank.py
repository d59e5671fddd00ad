"""One rank of a group that runs the mixed batches of tests/npu/families.py over many checkpoints."""

import json
import sys
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors.torch import save_file

from configs.checkpoint import Checkpoint
from model.ops.collectives import join
from model.ops.load import load_ops
from model.registry import family_of
from model.weights import Weights
from tests.npu.families import mixed_logits, samples_of
from tests.ranks.planted import planted

CPU = torch.device("cpu")


def main(rank: int, n: int, root: Path) -> None:
    """given.json: a list of jobs (family, path, dtype, planted). said: for each what was counted.

    Rank 0 writes the logits of job i as "i" of logits.safetensors.
    """
    torch.set_num_threads(1)
    ranks = join(rank, n, root / "meeting", CPU)
    said, logits = [], {}
    for i, job in enumerate(json.loads((root / "given.json").read_text())["jobs"]):
        with planted(job["planted"]):
            ops = load_ops(CPU, getattr(torch, job["dtype"]), ranks=ranks)
            checkpoint = Checkpoint(Path(job["path"]))
            family = family_of(checkpoint)
            weights = Weights(checkpoint, family.renames, ops.dtype, ops.device, family.skips)
            model = family.build(checkpoint, weights, ops)
            ranks.counts.clear()
            logits[str(i)] = mixed_logits(model, samples_of(job["family"], checkpoint.path)).clone()
        said.append({
            "counts": dict(ranks.counts), "kv": asdict(model.kv), "vocab": model.vocab_size,
            "logits": list(logits[str(i)].shape), "taken": weights.taken_bytes,
        })  # fmt: skip
    (root / f"said-{rank}.json").write_text(json.dumps(said))
    if rank == 0:
        save_file(logits, root / "logits.safetensors")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
