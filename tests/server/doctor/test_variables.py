"""Variables that harm."""

import pytest

from server.doctor.variables import findings

BOTH = {"PYTORCH_ALLOC_CONF": "expandable_segments:True", "PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True"}


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"TASK_QUEUE_ENABLE": "1", "ASCEND_LAUNCH_BLOCKING": "0", "STREAMS_PER_DEVICE": "8"},
        {"PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True"},
        {"PYTORCH_NPU_ALLOC_CONF": "page_size:1g,expandable_segments:True"},
    ],
)
def test_what_does_no_harm(variables: dict[str, str]) -> None:
    assert [(one.verdict, one.check) for one in findings(variables, graphs=True)] == [("ok", "variables")]


@pytest.mark.parametrize(
    ("variables", "verdict", "check", "remedy"),
    [
        ({"TASK_QUEUE_ENABLE": "2"}, "fail", "TASK_QUEUE_ENABLE", "Set TASK_QUEUE_ENABLE=1"),
        ({"TASK_QUEUE_ENABLE": "0"}, "warn", "TASK_QUEUE_ENABLE", "Set TASK_QUEUE_ENABLE=1"),
        ({"ASCEND_LAUNCH_BLOCKING": "1"}, "fail", "ASCEND_LAUNCH_BLOCKING", "Unset ASCEND_LAUNCH_BLOCKING"),
        (BOTH, "fail", "PYTORCH_NPU_ALLOC_CONF", "Unset PYTORCH_ALLOC_CONF"),
        (
            {"PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True, max_split_size_mb:64"},
            "fail", "PYTORCH_NPU_ALLOC_CONF", "Take max_split_size_mb out",
        ),
        (
            {"PYTORCH_ALLOC_CONF": "garbage_collection_threshold:0.6,expandable_segments:true"},
            "fail", "PYTORCH_ALLOC_CONF", "Take garbage_collection_threshold out",
        ),
        (
            {"PYTORCH_NPU_ALLOC_CONF": "max_split_size_mb:64"},
            "warn", "PYTORCH_NPU_ALLOC_CONF", "Put expandable_segments:True into PYTORCH_NPU_ALLOC_CONF, alone",
        ),
        (
            {"PYTORCH_ALLOC_CONF": "expandable_segments:False"},
            "warn", "PYTORCH_ALLOC_CONF", "Put expandable_segments:True into PYTORCH_ALLOC_CONF",
        ),
        ({"STREAMS_PER_DEVICE": "16"}, "fail", "STREAMS_PER_DEVICE", "Set STREAMS_PER_DEVICE=32"),
    ],
)  # fmt: skip
def test_what_harms(variables: dict[str, str], verdict: str, check: str, remedy: str) -> None:
    [found] = findings(variables, graphs=True)
    assert (found.verdict, found.check) == (verdict, check) and found.remedy.startswith(remedy)


def test_without_graphs_the_queue_may_be_longer_and_blocking_is_slow() -> None:
    assert [one.check for one in findings({"TASK_QUEUE_ENABLE": "2"}, graphs=False)] == ["variables"]
    [found] = findings({"ASCEND_LAUNCH_BLOCKING": "1"}, graphs=False)
    assert found.verdict == "warn" and "graphs" not in found.found
