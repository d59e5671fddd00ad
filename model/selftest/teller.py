"""Sends rows to whoever started the self-test, and makes a row of an error."""

from collections.abc import Callable
from dataclasses import dataclass

from model.device import DeviceError, first_line
from model.selftest.rows import Begun, CaseResult, Said
from model.staging.streams import is_broken

SECONDS = 300.0  # of one row, the first calls of its kernels included


class DeviceBroken(RuntimeError):
    """Nothing runs any more on the device in this process. The row that found it is sent."""


@dataclass(frozen=True, slots=True)
class Teller:
    section: str
    send: Callable[[Said], None]

    def begin(self, name: str, seconds: float = SECONDS, may_hang: bool = False) -> None:
        self.send(Begun(section=self.section, name=name, seconds=seconds, may_hang=may_hang))

    def skip(self, name: str, note: str) -> None:
        self.send(CaseResult(section=self.section, name=name, verdict="skip", note=note))

    def attempt(
        self, name: str, run: Callable[[], CaseResult], case: str = "", dtype: str = "", seconds: float = SECONDS
    ) -> None:
        """Send the row that `run` gives, or one with its error. Raises DeviceBroken."""
        self.begin(" ".join(word for word in (name, case, dtype) if word), seconds)
        try:
            row = run()
        except (ArithmeticError, AssertionError, DeviceError, LookupError, OSError, RuntimeError, TypeError,
                ValueError) as error:  # fmt: skip
            note = f"{type(error).__name__}: {first_line(error)}"
            row = CaseResult(section=self.section, name=name, case=case, dtype=dtype, verdict="fail", note=note)
            self.send(row)
            if isinstance(error, RuntimeError) and is_broken(error):
                raise DeviceBroken(note) from None
            return
        self.send(row)
