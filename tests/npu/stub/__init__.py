"""A stub of Ascend's driver: with it the real torch_npu runs on a machine without an NPU."""

import sys
from pathlib import Path

HOME = Path(sys.prefix).parent  # of the environment that this Python belongs to, as pairs.py has it
