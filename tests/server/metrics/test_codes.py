"""A code stands in one list, once, and the lists are sorted; that every error has one is tested where errors are."""

from server.metrics.codes import FAULTS, FINISHED, REFUSALS


def test_a_code_stands_in_one_list_and_can_be_found() -> None:
    assert list(FAULTS) == sorted(FAULTS) and list(REFUSALS) == sorted(REFUSALS)
    codes = (*FINISHED, *FAULTS, *REFUSALS)
    assert len({*codes}) == len(codes)
