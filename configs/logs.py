"""What every process of a server writes to stderr, and how."""

from typing import Annotated, Literal

import msgspec

from configs.setting import Setting

# fmt: off


class LogConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What every process of a server writes to stderr, and how."""

    level: Annotated[Literal["debug", "info", "warning", "error"], Setting(
        "what is logged, of all processes; access lines are info, a 4xx is a warning, a 5xx and a cut stream an error",
        name="log_level",
    )] = "info"
    format: Annotated[Literal["text", "json"], Setting(
        "how log lines are written; json is one object a line", name="log_format"
    )] = "text"
    access: Annotated[bool, Setting(
        "one line for each answered request, but probes and /metrics; errors leave their line either way",
        name="access_log",
    )] = True
