"""The log of a training run as a picture."""

import json
from pathlib import Path

from matplotlib.figure import Figure


def plot_losses(log: Path, picture: Path) -> None:
    """Losses by kind of exercise above, shares of right answers by task below, over steps."""
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    entries = [line for line in lines if "loss" in line]
    figure = Figure(figsize=(9, 10))
    axes = figure.subplots(2, 1, sharex=True)
    for axis, key, label in ((axes[0], "loss", "loss"), (axes[1], "right", "answered right")):
        for name in sorted({name for entry in entries for name in entry[key]}):
            points = [(entry["step"], entry[key][name]) for entry in entries if name in entry[key]]
            axis.plot(*zip(*points, strict=True), label=name, linewidth=1)
        axis.set_ylabel(label)
        axis.legend(fontsize=6, ncols=4)
        axis.grid(alpha=0.3)
    axes[0].set_yscale("log")
    axes[1].set_xlabel("step")
    figure.tight_layout()
    figure.savefig(picture, dpi=110)
