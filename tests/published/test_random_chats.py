"""Thousands of random chats with real media: the ids of our host half against those of transformers' AutoProcessor."""

import subprocess
import sys

import pytest

from configs.settings import REPO, child_env

CHATS = 100  # of each directory of the corpus

pytestmark = pytest.mark.long


def test_random_chats_against_the_real_processor() -> None:
    """In a process of its own, which alone sees torchvision."""
    reference = REPO / "build" / "reference"
    assert reference.is_dir(), "`make long` puts torchvision there"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.layouts.against_autoprocessor", str(CHATS)],
        cwd=REPO, env=child_env({"PYTHONPATH": f"{reference}:{REPO}"}), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    print(done.stdout)
