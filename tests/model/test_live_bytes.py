"""What a profile by shapes loads, in a process of its own; how bytes are counted: tests/model/engine/test_profile."""

import json
import subprocess
import sys

from configs.settings import EMBEDDED_MODEL, REPO

SCRIPT = f"""
import json
import sys
import tempfile
from configs.serve import EngineConfig
from model.engine.loop import load
from model.engine.messages import LargestItem, StartEngine
from model.live_bytes import without_compiler
items = tuple(
    LargestItem(kind=kind, grid=grid, n_tokens=64, fixed=False)
    for kind, grid in (("image", (1, 16, 16)), ("video", (2, 16, 16)), ("audio", (1, 1, 128)))
)
start = StartEngine(
    checkpoint={str(EMBEDDED_MODEL)!r}, engine=EngineConfig(device="cpu", dtype="float32", threads=1),
    shm_root=tempfile.mkdtemp(), max_model_len=512, largest=items,
)
table = load(start)[1].memory
loaded = "torch._dynamo" in sys.modules
with without_compiler():
    from torch._dynamo import config  # who wants it gets it
print(json.dumps([loaded, config.__name__, "torch._dynamo" in sys.modules, table, load(start)[1].memory]))
"""


def test_an_engine_starts_without_torchs_compiler() -> None:
    """And its table says what it says with it."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=REPO, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    loaded, wanted, stays, without, with_it = json.loads(done.stdout)
    assert not loaded and (wanted, stays) == ("torch._dynamo.config", True)
    assert without == with_it and {"encoder peak, image", "activations of a step"} <= {row[0] for row in without}
