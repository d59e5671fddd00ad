"""What an absent --max-pixels stands for: the checkpoint's own bound on a device that was asked for by name."""

from pathlib import Path

import pytest

from configs.settings import load_config
from server.defaults import with_own_pixels
from tests.server.tables import each_of
from tests.tiny.qwen2_audio import write_qwen2_audio
from tests.tiny.qwen2_vl import write_qwen2_vl

OWN, HOST = 12_845_056, 1_003_520


@pytest.fixture(scope="module")
def photographer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_qwen2_vl(tmp_path_factory.mktemp("published"), max_pixels=OWN)


@each_of(
    ("flags", "most"),
    [
        ([], HOST),
        (["--device", "cpu"], HOST),
        (["--device", "auto"], HOST),  # the server does not know what auto finds
        (["--device", "npu"], OWN),
        (["--device", "cuda"], OWN),
        (["--device", "cuda", "--max-pixels", "50176"], 50_176),
        (["--device", "cpu", "--max-pixels", str(OWN)], OWN),
        (["--device", "npu", "--max-pixels", str(2 * OWN)], 2 * OWN),
    ],
)
def test_which_bound_holds(photographer: Path, flags: list[str], most: int) -> None:
    media = with_own_pixels(load_config(["--model", str(photographer), *flags], {})).media
    assert (media.max_pixels, media.own_pixels) == (most, "never")


def test_a_checkpoint_with_less_or_without_pictures_takes_nothing_from_a_request(tmp_path: Path) -> None:
    small = write_qwen2_vl(tmp_path / "small", max_pixels=50_176)
    deaf = write_qwen2_audio(tmp_path / "audio")
    for path in (small, deaf):
        assert with_own_pixels(load_config(["--model", str(path), "--device", "npu"], {})).media.max_pixels == HOST
