"""The registry: a family by its architecture, and an answer that helps for every other."""

import subprocess
import sys
from pathlib import Path

import pytest

from configs.checkpoint import Checkpoint, CheckpointError
from model.registry import architectures, families, family_of
from tests.tiny.qwen2_vl import write_json

pytestmark = pytest.mark.network


def test_known(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", {"architectures": ["Qwen2VLForConditionalGeneration"]})
    assert family_of(Checkpoint(tmp_path)).name == "qwen2_vl"


def test_every_family_is_listed_once_with_its_architectures() -> None:
    found = families()
    assert sorted(architecture for _, own in found for architecture in own) == list(architectures())
    assert len({family.name for family, _ in found}) == len(found)


def test_unknown_architecture_lists_what_is_supported(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", {"architectures": ["BertModel"]})
    with pytest.raises(CheckpointError, match=r"'BertModel' is not supported.*Qwen2VLForConditionalGeneration"):
        family_of(Checkpoint(tmp_path))


def test_finding_a_family_imports_no_torch(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", {"architectures": ["Qwen2VLForConditionalGeneration"]})
    code = (
        "import sys; from pathlib import Path; from configs.checkpoint import Checkpoint\n"
        "from model.registry import families, family_of\n"
        "family_of(Checkpoint(Path(sys.argv[1]))); assert families() and 'torch' not in sys.modules"
    )
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=root, check=True, timeout=60)
