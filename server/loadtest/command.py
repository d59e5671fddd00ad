"""`pixelferry loadtest`: one run, or the comparison of two; what it prints, what it writes and its exit code."""

import argparse
import asyncio
import math
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import uvloop

from server.loadtest.driving.target import TargetError
from server.loadtest.find import CapacityTest
from server.loadtest.options import Options, read_options, share
from server.loadtest.plans import LoadPlan, plans_of
from server.loadtest.results.compare import caches_text, compare, compare_text
from server.loadtest.results.page import write_page
from server.loadtest.results.result import RunResult, read_json, write_json
from server.loadtest.results.table import result_text, write_csv
from server.loadtest.run import LoadTest

GOOD, FAILED, USAGE, ERRORS, VANISHED, INTERRUPTED = 0, 1, 2, 3, 4, 130
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def loadtest(argv: list[str]) -> int:
    """Do what the arguments say; the exit code."""
    interrupt = Interrupt()
    try:
        with interrupt.caught():
            return compare_runs(argv[1:]) if argv[:1] == ["compare"] else run(argv, interrupt)
    except SystemExit as end:
        return int(end.code or 0)
    except (OSError, ValueError) as error:
        return complain(error, USAGE)
    except KeyboardInterrupt:
        return complain(InterruptedError("interrupted before anything was sent or compared"), INTERRUPTED)


def run(argv: list[str], interrupt: "Interrupt") -> int:
    """One run. Raises OSError and ValueError where it cannot begin, SystemExit as argparse does, KeyboardInterrupt."""
    options = read_options(argv)
    say(options, "preparing requests ...")
    if options.find is not None and not options.dry_run:
        test: LoadTest = CapacityTest(options)
    else:
        plans = plans_of(options)
        if options.dry_run:
            print(plan_text(plans))
            return GOOD
        test = LoadTest(options, plans)
    interrupt.raises = False
    if interrupt.event.is_set():  # where KeyboardInterrupt cannot be raised, as in a destructor, it came to nothing
        raise KeyboardInterrupt
    try:
        result = uvloop.run(test.run(interrupt.event))
        print(result_text(result, formulas=options.formulas))
        written = write_files(result, options)
    except TargetError as error:
        return complain(error, VANISHED if error.no_server else ERRORS if error.answers else USAGE)
    except (OSError, ValueError) as error:  # it has begun: what was asked for is not at fault
        return complain(error, FAILED)
    if result.vanished or result.interrupted:
        return VANISHED if result.vanished else INTERRUPTED
    if result.too_many_errors or result.failures or not written:
        return ERRORS if result.too_many_errors else FAILED
    return USAGE if result.unclear else GOOD


class Interrupt:
    """What the first Ctrl-C or SIGTERM does, whatever the process does; the second one ends it at once.

    The first one sets `event` in any case, and raises KeyboardInterrupt until a run is ready to look at the event.
    """

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self.raises = True

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Both signals are ours within, also SIGINT where a shell started us in the background and had it ignored."""
        before = {number: signal.getsignal(number) for number in SIGNALS}
        try:
            for number in SIGNALS:
                signal.signal(number, self._stop)
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self, *_: object) -> None:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        try:
            asyncio.get_running_loop().call_soon_threadsafe(self.event.set)
        except RuntimeError:  # no loop runs: requests are made, or files are written
            self.event.set()
        if self.raises:
            raise KeyboardInterrupt
        with suppress(OSError, RuntimeError, ValueError):  # stderr is gone, or is being written at this moment
            print("interrupted: what there is is told; once more ends at once", file=sys.stderr)


def write_files(result: RunResult, options: Options) -> bool:
    """All that were asked for; whether all could be written."""
    writers = ((options.json, write_json), (options.csv, write_csv), (options.html, write_page))
    good = True
    for path, write in ((path, write) for path, write in writers if path is not None):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write(result, path)
            say(options, f"written: {path}")
        except OSError as error:
            complain(error, FAILED)
            good = False
    return good


def plan_text(plans: list[LoadPlan]) -> str:
    """What would be sent."""
    lines = []
    for plan in plans:
        kinds = sorted({f"{one.kind} ({one.bucket})" for one in plan.drawn})
        nbytes = sum(medium.nbytes for one in plan.drawn for medium in one.media)
        lines.append(f"{plan.label}: {len(plan.drawn)} requests drawn, {nbytes / 1e6:.1f} MB of media in them")
        lines += [f"  {kind}" for kind in kinds]
        if plan.dues:
            lines.append(f"  sent from {plan.dues[0]:.3f} s to {plan.dues[-1]:.3f} s")
    return "\n".join(lines)


def compare_runs(argv: list[str]) -> int:
    """`loadtest compare A.json B.json`. Raises OSError, ValueError, SystemExit."""
    parser = argparse.ArgumentParser(prog="pixelferry loadtest compare", description="Two runs that --json wrote.")
    parser.add_argument("a", type=Path)
    parser.add_argument("b", type=Path)
    parser.add_argument("--worse-than", type=share, metavar="SHARE",
                        help="exit code 1 where B is certainly slower by more than that, such as 5%%")  # fmt: skip
    given = parser.parse_args(argv)
    a, b = (read_json(path) for path in (given.a, given.b))
    found = compare(a, b)
    print(compare_text(found))
    print(caches_text(a, b))
    bound = math.inf if given.worse_than is None else given.worse_than
    worse = [f"{label}: {one.name}" for label, rows in found.items() for one in rows if one.worse_than(bound)]
    for line in worse:
        print(f"FAILED: slower by more than {bound:.0%}: {line}")
    colder = [one for rows in found.values() for one in rows if one.by_caches and one.low > bound * one.a]
    if colder and not worse:
        print("UNCLEAR: whether B is slower: its caches were colder")
        return USAGE
    return FAILED if worse else GOOD


def say(options: Options, text: str) -> None:
    if not options.quiet:
        print(text, file=sys.stderr)


def complain(error: Exception, code: int) -> int:
    print(f"error: {error}", file=sys.stderr)
    return code
