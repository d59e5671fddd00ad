"""One section of the self-test in a process of its own: `python -m model.selftest SECTION DEVICE full|quick [DIR|N]`.

server/selftest/ starts it, and reads a line of JSON for each thing that it says.
"""

import os
import sys
import traceback
from pathlib import Path

import msgspec

from configs.serve import Device
from model.selftest.rows import CaseResult, Opened, Said
from model.selftest.teller import DeviceBroken, Teller


def main(argv: list[str]) -> int:
    """The exit code: 0 once all is said, 1 behind a row that says why no more can be said."""
    name, device, quick = argv[0], msgspec.convert(argv[1], Device), argv[2] == "quick"
    counted = name == "ranks"
    checkpoint = Path(argv[3]) if len(argv) > 3 and not counted else None
    ranks = int(argv[3]) if counted else 1
    rows = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what libraries print belongs on the terminal, not between the rows
    encode = msgspec.json.Encoder().encode

    def send(said: Said) -> None:
        rows.write(encode(said) + b"\n")

    tell = Teller(name, send)
    tell.begin("the device")
    from model.device import DeviceError
    from model.selftest.sections import SECTIONS, Work, open_device, versions

    try:
        where = open_device(device)
    except DeviceError as error:
        send(CaseResult(section=name, name="the device", verdict="fail", note=str(error)))
        return 1
    send(Opened(device=str(where), versions=versions(where)))
    try:
        SECTIONS[name](Work(tell=tell, device=where, quick=quick, checkpoint=checkpoint, ranks=ranks))
    except DeviceBroken:
        return 1
    except Exception as error:  # noqa: BLE001 - a process main: the rows that were sent are worth as much as before
        traceback.print_exc()
        send(CaseResult(section=name, name=name, verdict="fail", note=f"{type(error).__name__}: {error}"))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
