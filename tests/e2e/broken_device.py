"""A double of a device whose context breaks, at the edge of the machine: an operator of towers fails as CANN fails."""

import os
import sys
import threading
from pathlib import Path
from typing import Any

SAID = "ACL stream synchronize failed, error code:507015"
_TRIGGER = "TEST_BREAKS_DEVICE"  # names a file: the next tower that runs while it is there breaks its process's device


def breakable(folder: Path) -> tuple[dict[str, str], Path]:
    """(environment of a server whose engine computes on such a device, the file that breaks it)."""
    repo, trigger = Path(__file__).parents[2], folder / "break"
    # What every Python process runs before its own program.
    (folder / "sitecustomize.py").write_text("from tests.e2e.broken_device import install\n\ninstall()\n")
    return {"PYTHONPATH": f"{folder}:{repo}", _TRIGGER: str(trigger)}, trigger


def install() -> None:
    """In the engine alone. Nothing runs behind the error in that process; the next one finds the device well."""
    if "engine" not in sys.orig_argv:
        return
    import torch
    import torch.nn.functional as F

    layer_norm, trigger = F.layer_norm, Path(os.environ[_TRIGGER])
    broken = threading.Event()

    def fails(*args: Any, **options: Any) -> Any:
        if trigger.exists():
            trigger.unlink()
            broken.set()
            # A driver's thread, which does not end by itself.
            threading.Thread(target=threading.Event().wait, name="driver").start()
        if broken.is_set():
            raise torch.AcceleratorError(SAID)
        return layer_norm(*args, **options)

    F.layer_norm = fails
