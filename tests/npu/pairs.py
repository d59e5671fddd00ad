"""The pairs of torch and torch_npu that ring 1 runs, and where each has its environment."""

from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    torch: str
    torch_npu: str

    @property
    def name(self) -> str:
        return f"torch_npu-{self.torch_npu}"

    @property
    def home(self) -> Path:
        """What is made for this pair: `venv`, `cann` (stub of the driver), `cuda` (stubs of names alone)."""
        return REPO / "build" / "npu" / self.name

    @property
    def python(self) -> Path:
        return self.home / "venv" / "bin" / "python"

    @property
    def packages(self) -> Path:
        return next((self.home / "venv" / "lib").glob("python*/site-packages"))


PAIRS = (
    Pair(torch="2.13.0", torch_npu="2.13.0"),  # the newest that the project is developed on
    Pair(torch="2.10.0", torch_npu="2.10.0.post4"),  # what constraints/ascend.txt installs
)


def pair_named(name: str) -> Pair:
    """Raises KeyError."""
    return {pair.name: pair for pair in PAIRS}[name]
