"""The listing in docs/shared-memory.md runs as printed, and leaves nothing."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from shm import default_root
from tests import leaks
from tests.shm.conftest import REPO

pytestmark = pytest.mark.process


def test_the_listing_runs_as_printed(tmp_path: Path) -> None:
    text = (REPO / "docs" / "shared-memory.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 1 and "release_shared_memory" in blocks[0]
    before = set(leaks.names_in(default_root()))
    script = tmp_path / "listing.py"
    script.write_text(blocks[0], encoding="utf-8")
    env = {**os.environ, "PYTHONPATH": str(REPO)}
    done = subprocess.run([sys.executable, script], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "my_segments.txt").exists()
    fresh = [name for name in leaks.names_in(default_root()) if name not in before and name.endswith(".owner")]
    assert all(leaks.is_locked(default_root() / name) for name in fresh)  # other sessions' owners, alive
