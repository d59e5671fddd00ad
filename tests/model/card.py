"""A double of an accelerator's memory at the edge of the machine: what CPU tensors take is counted as if on a card."""

import pytest
import torch

from tests.model.live_bytes import LiveBytes

SEGMENT = 2 << 20  # what torch's allocator takes from a driver at least


class Card:
    """`torch.npu` or `torch.cuda` as far as memory is asked for; an allocator that keeps what was freed."""

    def __init__(self, live: LiveBytes, total: int) -> None:
        self.live, self.total = live, total
        self.others = 0  # bytes of other processes
        self.kept = 0  # whole segments, since they were last given back
        self.calls: list[str] = []

    def synchronize(self, device: torch.device) -> None:
        self.calls.append("synchronize")

    def empty_cache(self) -> None:
        assert self.calls[-1] == "synchronize", "what a stream still uses is not given back"
        self.kept = self._segments(self.live.live)
        self.live.peak = self.live.live
        self.calls.append("empty_cache")

    def mem_get_info(self, device: torch.device) -> tuple[int, int]:
        self.kept = max(self.kept, self._segments(self.live.peak))
        return self.total - self.others - self.kept, self.total

    def memory_allocated(self, device: torch.device) -> int:
        return self.live.live

    def max_memory_allocated(self, device: torch.device) -> int:
        assert self.calls[-1] == "synchronize", "a peak may still come"
        return self.live.peak

    def reset_peak_memory_stats(self, device: torch.device) -> None:
        self.mem_get_info(device)
        self.live.peak = self.live.live

    @staticmethod
    def _segments(nbytes: int) -> int:
        return -(-nbytes // SEGMENT) * SEGMENT


def install_card(monkeypatch: pytest.MonkeyPatch, card: Card) -> None:
    """Whoever asks for a device's module finds `card`."""
    monkeypatch.setattr(torch, "get_device_module", lambda device: card)
