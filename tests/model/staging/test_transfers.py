"""Media on their way in, results on their way out, and which errors of a device end everything."""

import numpy as np
import pytest
import torch

from model.ops.npu_rules import RuleError
from model.staging.streams import Streams, is_broken, open_streams
from model.staging.transfers import Results, Uploads
from tests.model.staging.late import Late
from tests.tables import each_of

pytestmark = pytest.mark.network

BOTH = pytest.mark.parametrize("streams", [open_streams(torch.device("cpu")), Late()], ids=["cpu", "late"])


@BOTH
def test_an_upload_is_what_was_written(streams: Streams) -> None:
    uploads, sent = Uploads(streams), []
    for i, (shape, dtype) in enumerate([((3, 4), "uint8"), ((2, 5), "float32"), ((70, 4), "uint8"), ((1,), "uint8")]):
        upload = uploads.open(shape, dtype)
        upload.array[...] = i + 1
        sent.append(upload.send().clone())
    assert [(tuple(x.shape), x.dtype, x.unique().tolist()) for x in sent] == [
        ((3, 4), torch.uint8, [1]), ((2, 5), torch.float32, [2]), ((70, 4), torch.uint8, [3]), ((1,), torch.uint8, [4]),
    ]  # fmt: skip


def test_a_medium_is_read_into_memory_whose_copy_is_done() -> None:
    streams = Late()
    uploads = Uploads(streams)
    for waits in (0, 0, 1, 2):
        upload = uploads.open((64,), "uint8")
        assert streams.waits == waits
        upload.send()


@BOTH
def test_results_come_back_together(streams: Streams) -> None:
    results = Results(streams)
    for n in (3, 500, 2):
        ids, values = torch.arange(n * 2, dtype=torch.int32).view(n, 2), torch.linspace(0, 1, n)
        found = results.fetch(ids, values)
        assert np.array_equal(found[0], ids.numpy()) and np.array_equal(found[1], values.numpy())


def test_all_results_cost_one_wait() -> None:
    streams = Late()
    Results(streams).fetch(torch.zeros(3), torch.zeros(4), torch.zeros(5))
    assert streams.waits == 1


@each_of(
    ("error", "broken"),
    [
        (RuntimeError("ACL stream synchronize failed, error code:507011"), True),
        (RuntimeError("[ERROR] The Inner error is reported. 507018: aicpu exception"), True),
        (torch.AcceleratorError("CUDA error: an illegal memory access was encountered"), True),
        (RuntimeError("call aclnnMatmul failed, error code is 561002"), False),
        (torch.OutOfMemoryError("NPU out of memory. Tried to allocate 2.00 GiB, error code 207018"), False),
        (RuntimeError("[ERROR] The Inner error is reported as above, 561002"), True),
        (RuntimeError("call aclnnMatmul failed, error code is 161002"), False),
        (RuntimeError("call aclnnMatmul failed, error code is 1561002"), True),
        (RuntimeError("ACL event synchronize failed"), True),
        (RuleError("operator", "argument", "rule", 1), False),
        (ValueError("pixels do not fit"), False),
        (torch.OutOfMemoryError("CUDA out of memory"), False),
    ],
    ids=str,
)
def test_which_errors_end_everything(error: Exception, broken: bool) -> None:
    assert is_broken(error) == broken
    assert is_broken(error, behind=False) == isinstance(error, torch.AcceleratorError), "a CPU goes on"
