"""The part of the tree that HTTP and tokenizer processes load, which must stay free of torch."""

import importlib
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
ENGINE = (
    "encoder_cache", "kv_blocks", "messages", "plan", "sampling/history", "scheduler", "sequence",
    "scheduling/client_line", "scheduling/fair_shares", "scheduling/giving_way", "scheduling/step_budget",
)  # fmt: skip
MODEL = ("registry", "family")


def host_modules() -> list[str]:
    """Dotted names: four whole rooms, and of model/ what the host needs. `__main__` runs, it is not imported."""
    paths = [path for room in ("server", "tokenization", "shm", "configs") for path in (REPO / room).rglob("*.py")]
    paths += [REPO / "model" / f"{name}.py" for name in MODEL]
    paths += [path for path in sorted((REPO / "model" / "families").rglob("*.py")) if path.name != "recipe.py"]
    paths += [REPO / "model" / "engine" / f"{name}.py" for name in ENGINE]
    names = [path.relative_to(REPO).with_suffix("").as_posix().replace("/", ".") for path in sorted(paths)]
    return [name for name in names if not name.endswith(("__init__", "__main__"))]


def import_all() -> list[str]:
    """Import them all; the names."""
    names = host_modules()
    for name in names:
        importlib.import_module(name)
    return names
