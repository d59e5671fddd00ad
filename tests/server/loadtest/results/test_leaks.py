"""The leak verdict: what came back, what did not, and what nobody can know."""

import re

import numpy as np

from server.loadtest.results.leaks import (
    MIB,
    LeakCheck,
    Snapshot,
    idle,
    judge,
    parse_metrics,
    value_of,
    verdict,
    watched,
)
from tests.server.loadtest.examples import IDLE
from tests.tables import each_of

ENGINE = 'child_resident_memory_bytes{role="engine"}'
# An honest engine from its start, every picture new, 6 requests a second on two cores that others use, too (log.md,
# 2026-11-24): each 10 s its MiB, of these the ones that it keeps on purpose, and how many requests had ended.
GREW = (
    362, 464, 559, 607, 621, 642, 671, 705, 760, 792, 823, 834, 840, 855, 869, 881, 897, 906, 915, 920, 926, 930, 939,
    943, 948, 951, 960, 966, 971, 972, 974, 976, 983, 985, 988, 990, 990, 990, 993, 993, 996, 996, 998, 998, 998, 1001,
    1004, 1005, 1007, 1007, 1008, 1009, 1011, 1010, 1013, 1016, 1017, 1019, 1022, 1022, 1025, 1029, 1031, 1034, 1035,
    1040,
)  # fmt: skip
KEPT = (
    0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 21, 22, 23, 24, 24, 26, 27, 28, 29, 30,
    31, 32, 32, 33, 34, 34, 35, 35, 36, 37, 37, 38, 38, 38, 39, 39, 40, 40, 41, 41, 42, 42, 43, 44, 45, 46, 48, 49, 50,
    50, 51, 52, 54, 55, 57,
)  # fmt: skip
ENDED = (
    0, 44, 153, 237, 287, 344, 408, 495, 632, 737, 822, 886, 957, 1027, 1089, 1170, 1245, 1313, 1388, 1466, 1531, 1590,
    1638, 1686, 1747, 1805, 1881, 1990, 2106, 2174, 2239, 2318, 2370, 2411, 2467, 2512, 2553, 2595, 2644, 2694, 2746,
    2786, 2821, 2857, 2889, 2914, 2956, 3030, 3113, 3195, 3290, 3370, 3464, 3529, 3600, 3692, 3826, 3932, 4003, 4059,
    4107, 4176, 4252, 4356, 4463, 4611,
)  # fmt: skip
SECONDS = 10.0 * np.arange(len(ENDED))


def judged(after: dict[str, float], before: dict[str, float] | None = None) -> dict[str, str]:
    """The verdict of each thing but memory, for which two looks are too few."""
    first, last = Snapshot(0.0, IDLE if before is None else before), Snapshot(10.0, after)
    found = {one.name: one.verdict for one in judge([first, last], []) if not one.name.startswith("memory")}
    return found


def of_memory(
    begin: float, end: float, *, planted: float = 0.0, rss: tuple[float, ...] = GREW, key: str = ENGINE
) -> tuple[str, str]:
    """The verdict on that process, by a look a second, and why. planted: MiB that each request leaves."""
    ends = np.interp(np.arange(np.interp(begin, SECONDS, ENDED), np.interp(end, SECONDS, ENDED)), ENDED, SECONDS)
    looks = []
    for at in np.arange(begin, end + 1):
        n = np.searchsorted(ends, at)
        metrics = {key: MIB * (np.interp(at, SECONDS[: len(rss)], rss) + planted * n)}
        looks.append(Snapshot(at, {**IDLE, **metrics, "mm_cache_bytes": MIB * np.interp(at, SECONDS, KEPT)}))
    name = "memory of process engine" if key == ENGINE else "memory of the server process"
    return next((one.verdict, one.says) for one in judge(looks, ends.tolist()) if one.name == name)


def test_a_server_that_came_back_is_clean() -> None:
    found = judged(dict(IDLE))
    assert set(found.values()) == {"clean"} and len(found) == 8


@each_of(
    ("metric", "value", "name"),
    [
        ('shm_bytes{state="leased"}', 4096.0, "leased shared memory, bytes"),
        ('shm_segments{state="leased"}', 1.0, "leased segments"),
        ("shm_path_files", 1.0, "path files"),
        ("mm_inflight_bytes", 1.0, "bytes of request bodies"),
        ("num_requests_running", 1.0, "requests in the engine"),
        ('num_requests_waiting{place="worker"}', 2.0, "requests that wait"),
        ("kv_cache_usage_perc", 0.01, "KV cache in use, share"),
        ("process_open_fds", 25.0, "open descriptors"),
    ],
)
def test_each_thing_that_stays_is_a_leak_of_its_own(metric: str, value: float, name: str) -> None:
    found = judged({**IDLE, metric: value})
    assert [thing for thing, said in found.items() if said == "leaked"] == [name]


@each_of(
    ("metric", "value"),
    [('shm_bytes{state="idle"}', 1e9), ("process_open_fds", 24.0)],
)
def test_what_may_grow_is_no_leak(metric: str, value: float) -> None:
    assert "leaked" not in judged({**IDLE, metric: value}).values()


@each_of(("held", "verdict"), [((24.0, 24.0), "clean"), ((20.0, 29.0), "leaked")])
def test_each_of_several_servers_may_keep_as_much_as_one(held: tuple[float, float], verdict: str) -> None:
    def of(*values: float) -> dict[str, float]:
        own = {f'process_open_fds{{replica="{n}"}}': value for n, value in enumerate(values)}
        return {key: value for key, value in IDLE.items() if key != "process_open_fds"} | own

    assert judged(of(*held), of(20.0, 20.0))["open descriptors"] == verdict


def test_what_was_held_before_is_not_held_by_the_run() -> None:
    held = {**IDLE, 'shm_bytes{state="leased"}': 4096.0}
    assert "leaked" not in judged(held, held).values()


@each_of("seconds", [60, 120, 300, 600])
def test_an_honest_engine_is_never_a_leak_whenever_a_run_began(seconds: int) -> None:
    said = [of_memory(begin, begin + seconds) for begin in range(0, 650 - seconds, 30)]
    assert said and not [one for one in said if one[0] == "leaked"]
    assert seconds < 300 or said[0][0] == "clean", "growth that levels off is none"


@each_of("begin", [0, 300])
@each_of("seconds", [60, 120, 300])
def test_what_each_request_leaves_is_a_leak_beside_honest_growth(begin: int, seconds: int) -> None:
    """2 MiB: a request of this run had many steps. On the server's own process, which grows little, 1 MiB."""
    assert of_memory(begin, begin + seconds, planted=2.0)[0] == "leaked"
    flat = (76.0, 82.0)
    verdict, says = of_memory(begin, begin + seconds, planted=1.0, rss=flat, key="process_resident_memory_bytes")
    assert verdict == "leaked" and "MiB a request (95 %: " in says and " behind the warm-up, " in says


def test_sixty_requests_that_leave_a_mib_each_are_told() -> None:
    """In a minute, from 76 MiB."""
    looks = [Snapshot(float(at), {**IDLE, "process_resident_memory_bytes": MIB * (76.0 + at)}) for at in range(61)]
    found = {one.name: one.verdict for one in judge(looks, [float(at) for at in range(1, 61)])}
    assert found["memory of the server process"] == "leaked"


def test_an_engine_is_judged_by_its_steps_of_which_a_request_has_many_or_few() -> None:
    """In the second half of the minute its requests have a third of the steps: by requests, that would level off."""
    steps = np.cumsum([60.0] * 31 + [20.0] * 30)
    looks = [
        Snapshot(float(at), {**IDLE, ENGINE: MIB * (350.0 + n), 'iteration_tokens_count{model_name="x"}': n})
        for at, n in enumerate(steps.tolist())
    ]
    found = {one.name: one for one in judge(looks, np.linspace(0, 60, 240).tolist())}
    assert found["memory of process engine"].verdict == "leaked"
    assert found["memory of process engine"].says.startswith("+1.000 MiB a step (95 %: +1.000, +1.000)")


@each_of("role", ["engine", "worker"])
@each_of("began", [80, 350])
def test_a_short_run_says_how_long_the_verdict_needs(role: str, began: int) -> None:
    """2 MiB a second: a run of 30 s is too short for a verdict, and one of the length that it names has one."""

    def said(seconds: int) -> LeakCheck:
        key = f'child_resident_memory_bytes{{role="{role}"}}'
        looks = [Snapshot(float(at), {**IDLE, key: MIB * (began + 2.0 * at)}) for at in range(seconds + 1)]
        found = judge(looks, [at / 4 for at in range(1, 4 * seconds)])
        return next(one for one in found if one.name == f"memory of process {role}")

    short = said(30)
    assert short.verdict == "unknown" and "2.00 MiB/s is judged a leak" in short.says
    named = re.search(r"by ([0-9]+) s$", short.says)
    assert named is not None and 45 <= int(named[1]) <= 150
    assert said(int(named[1])).verdict == "leaked"


@each_of("jump", [20, 40, 55])
def test_one_jump_is_no_leak(jump: int) -> None:
    looks = [Snapshot(float(at), {**IDLE, ENGINE: MIB * (300.0 + 300.0 * (at > jump))}) for at in range(61)]
    found = {one.name: one.verdict for one in judge(looks, [float(at) for at in range(61)])}
    assert found["memory of process engine"] != "leaked"


def test_a_queue_of_requests_is_no_leak_and_neither_is_its_end() -> None:
    """Bodies that wait are in the server's gauge. What they took comes back to the process, not to the kernel."""
    inside = [min(at, 300 - at) * 5.0 for at in range(301)]  # to 750 at once, and back
    held = [MIB * 0.05 * n for n in inside]
    own = [76.0 * MIB + max(held[: at + 1]) + 60 * 1024 * max(inside[: at + 1]) for at in range(301)]
    looks = [
        Snapshot(float(at), {**IDLE, "num_requests_waiting": inside[at], "mm_inflight_bytes": held[at],
                             "process_resident_memory_bytes": own[at]})
        for at in range(301)
    ]  # fmt: skip
    found = {one.name: one.verdict for one in judge(looks, [at / 5 for at in range(1, 1500)])}
    assert found["memory of the server process"] == "clean"


@each_of(("seconds", "n"), [(30, 3000), (600, 20)], ids=["seconds", "looks"])
def test_too_short_a_run_is_unknown(seconds: int, n: int) -> None:
    looks = [
        Snapshot(at, {**IDLE, ENGINE: 1e6 * at})
        for at in np.linspace(0, seconds, min(n, 40)).tolist()[:: 40 // min(n, 40)]
    ]
    found = {one.name: one for one in judge(looks, np.linspace(0, seconds, n).tolist())}
    assert found["memory of process engine"].verdict == "unknown"
    assert "too short" in found["memory of process engine"].says


def test_clean_needs_everything_known() -> None:
    steady = [Snapshot(float(at), dict(IDLE)) for at in range(61)]
    ends = [float(at) for at in range(61)]
    assert verdict(judge(steady, ends)) == "clean"
    for metric in IDLE:
        if metric not in ('shm_bytes{state="idle"}', "mm_cache_bytes"):
            less = [Snapshot(one.at, {name: of for name, of in IDLE.items() if name != metric}) for one in steady]
            assert verdict(judge(less, ends)) == "unknown", metric


def test_files_are_looked_at_where_somebody_named_their_place() -> None:
    found = {one.name: one for one in judge([Snapshot(0, IDLE, files=0), Snapshot(1, IDLE, files=2)], [])}
    assert found["files in shared memory"].verdict == "leaked"
    assert found["files in shared memory"].says == "2 more than before"
    assert verdict(list(found.values())) == "leaked"


def test_a_server_that_tells_nothing_is_not_called_clean() -> None:
    assert verdict(judge([Snapshot(), Snapshot()], [])) == "unknown"


def test_another_server_is_judged_by_what_it_tells() -> None:
    theirs = {"num_requests_running": 0.0, "num_requests_waiting": 0.0}
    found = judged(theirs, theirs)
    assert found["requests in the engine"] == "clean" and found["leased shared memory, bytes"] == "unknown"


def test_a_timeline_keeps_what_is_judged_and_nothing_else() -> None:
    assert watched({**IDLE, 'http_requests_total{status="200"}': 5.0, "shm_bytes_capacity": 1.0}) == IDLE


def test_metrics_are_parsed_by_name_and_labels() -> None:
    text = """# HELP pixelferry:shm_bytes Shared memory
# TYPE pixelferry:shm_bytes gauge
pixelferry:shm_bytes{state="leased"} 4096.0
pixelferry:num_requests_waiting{model_name="a:b",place="worker"} 2.0
pixelferry:num_requests_waiting{model_name="a:b",place="engine"} 3.0
vllm:num_requests_running{engine="0"} 1.0
process_open_fds 21.0
odd NaN1
"""
    found = parse_metrics(text)
    assert value_of(found, "shm_bytes", 'state="leased"') == 4096
    assert value_of(found, "shm_bytes", 'state="idle"') is None
    assert value_of(found, "num_requests_waiting") == 5
    assert value_of(found, "num_requests_running") == 1
    assert value_of(found, "process_open_fds") == 21
    assert value_of(found, "odd") is None
    assert not idle(Snapshot(0, found)) and idle(Snapshot(0, IDLE)) and idle(Snapshot())
