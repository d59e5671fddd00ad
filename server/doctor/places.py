"""Looks at where `serve` writes beside its shared memory, and where it listens: each is tried."""

from collections.abc import Iterator
from pathlib import Path

from configs.serve import HttpConfig
from server.doctor.finding import Finding, fail, ok, skip, warn
from server.doctor.machine import Machine

_NAMED = ("TMPDIR", "TEMP", "TMP")  # in the order of Python's tempfile, which torch asks
_USUAL = ("/tmp", "/var/tmp", "/usr/tmp", ".")


def findings(machine: Machine, config: HttpConfig) -> Iterator[Finding]:
    if machine.tries is None:
        yield skip("places", "not tried: nothing is written to this tree of files, and nothing listens")
        return
    yield _temporary(machine)
    if config.url_file is not None:
        yield _url_file(machine, config.url_file)
    yield _port(machine, config)


def _temporary(machine: Machine) -> Finding:
    assert machine.tries is not None
    check = "temporary files"
    named = [machine.variables[name] for name in _NAMED if machine.variables.get(name)]
    refused: list[str] = []
    for place in (*named, *_USUAL):
        why = machine.tries.writing(Path(place))
        if why is None and not refused:
            return ok(check, place)
        if why is None:
            return warn(
                check,
                f"{refused[0]}; they go to {place}",
                "Make it writable: docker run --tmpfs /tmp, an emptyDir at /tmp in Kubernetes; or name another in "
                "TMPDIR.",
            )
        refused.append(f"{place}: {why}")
    return fail(
        check,
        "; ".join(refused),
        "Torch needs one: make /tmp writable (docker run --tmpfs /tmp; an emptyDir at /tmp in Kubernetes), or name "
        "another in TMPDIR.",
    )


def _url_file(machine: Machine, file: Path) -> Finding:
    assert machine.tries is not None
    check = "URL file"
    why = machine.tries.writing(file.parent)
    if why is None:
        return ok(check, str(file))
    return fail(
        check,
        f"{file.parent}: {why}",
        "Name a file in a directory of this user's: --url-file, RuntimeDirectory= in systemd; or leave it out.",
    )


def _port(machine: Machine, config: HttpConfig) -> Finding:
    assert machine.tries is not None
    check, where = "port", f"{config.host}:{config.port}"
    why = machine.tries.listening(config.host, config.port)
    if why is None:
        return ok(check, f"{where} can be had")
    return fail(
        check,
        f"{where}: {why}",
        "End what listens there (`ss -ltnp` names it), or give another --host or --port; ports below 1024 may need "
        "rights.",
    )
