"""Runs a module in n processes that are the ranks of one group, and hands back what each of them said."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from configs.settings import child_env

PATIENCE = 840  # seconds, of a machine that others use, too
TREE = Path(__file__).parents[2]


def run_ranks(module: str, n: int, root: Path, given: Mapping[str, Any]) -> list[Any]:
    """Each runs `python -m module` with its rank, n and `root`, reads given.json there and writes said-<rank>.json.

    One that ends in an error ends the others: an AssertionError with what they wrote.
    """
    root.mkdir(exist_ok=True)
    (root / "given.json").write_text(json.dumps(given))
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", module, str(rank), str(n), str(root)],
            env=child_env({"OMP_NUM_THREADS": "1"}), cwd=TREE,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(n)
    ]  # fmt: skip
    try:
        said = [process.communicate(timeout=PATIENCE)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert [process.returncode for process in processes] == [0] * n, "\n".join(said)
    return [json.loads((root / f"said-{rank}.json").read_text()) for rank in range(n)]
