"""What an engine's torch_npu is told by variables."""

from pathlib import Path

import pytest

from server.engine_environment import of_engine


@pytest.mark.parametrize(
    ("env", "found"),
    [
        ({}, {"PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True"}),
        ({"PYTORCH_NPU_ALLOC_CONF": "max_split_size_mb:64"}, {}),
        ({"PYTORCH_ALLOC_CONF": "expandable_segments:False"}, {}),  # torch_npu refuses both
        ({"LD_LIBRARY_PATH": ":/nowhere:"}, {"PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True"}),
    ],
)
def test_what_the_user_leaves_open_is_filled(env: dict[str, str], found: dict[str, str]) -> None:
    assert of_engine(env) == {**env, **found}


def test_cores_are_the_cards_where_the_driver_can_be_asked_for_them(tmp_path: Path) -> None:
    (tmp_path / "libdcmi.so").touch()
    env = {"LD_LIBRARY_PATH": f"/nowhere:{tmp_path}", "PYTORCH_NPU_ALLOC_CONF": ""}
    assert of_engine(env) == {**env, "CPU_AFFINITY_CONF": "1,npu_affine:1"}
    assert of_engine({**env, "CPU_AFFINITY_CONF": "0"}) == {**env, "CPU_AFFINITY_CONF": "0"}
