"""Variables that harm."""

import re

from configs.settings import REPO
from server.doctor.variables import findings, told
from tests.server.tables import each_of

BOTH = {"PYTORCH_ALLOC_CONF": "expandable_segments:True", "PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True"}


@each_of(
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


@each_of(
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


def test_a_file_that_is_sent_away_holds_no_path_and_no_secret() -> None:
    given = {
        "PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True", "CPU_AFFINITY_CONF": "1,npu_affine:1",
        "ASCEND_RT_VISIBLE_DEVICES": "0,1", "TASK_QUEUE_ENABLE": "/home/eve/key", "STREAMS_PER_DEVICE": "8\n9",
        "ASCEND_HOME_PATH": "/home/eve/cann", "LD_LIBRARY_PATH": "", "PIXELFERRY_API_KEY": "sk-1", "HOME": "/home/eve",
    }  # fmt: skip
    assert told(given) == {
        "PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True", "CPU_AFFINITY_CONF": "1,npu_affine:1",
        "ASCEND_RT_VISIBLE_DEVICES": "0,1", "TASK_QUEUE_ENABLE": "set", "STREAMS_PER_DEVICE": "set",
        "ASCEND_HOME_PATH": "set", "LD_LIBRARY_PATH": "set",
    }  # fmt: skip


def test_every_variable_that_the_doctor_reads_is_told() -> None:
    """Whatever stands in its code as a name of one."""
    code = "".join(path.read_text() for path in (REPO / "server" / "doctor").glob("*.py"))
    names = set(
        re.findall(
            r'"((?:ASCEND|HCCL|PYTORCH|RANK|STREAMS|TASK|CPU|LD|TOOLCHAIN)_[A-Z_]+|PATH|PYTHONPATH|TE?MP\w*)"', code
        )
    )
    assert len(names) > 12 and told(dict.fromkeys(names, "1")).keys() == names
