"""Each operation's contract is asked of every Ops present."""

import pytest

from model.ops.base import Ops
from tests.model.ops.present import PRESENT, present_ops


@pytest.fixture(params=PRESENT)
def ops(request: pytest.FixtureRequest) -> Ops:
    return present_ops(request.param)
