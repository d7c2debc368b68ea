"""Draw recall of new classes against their number of examples, as `benchmarks.firstcontact` measured it.

    python -m benchmarks.newclasses    # docs/images/new-classes.png

"Old" and "new" are halves of the classes, in an order drawn at random; of each old class all samples for
training are there, of each new one as many as the axis says, and all models learn the same samples.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.ticker import NullLocator

from benchmarks.firstcontact import BALANCED, DEFAULT, FEW, LOGISTIC

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "docs" / "performance" / "firstcontact-after.json"
PICTURE = ROOT / "docs" / "images" / "new-classes.png"
#: Name in the record → title: one of small images as they are, one of photographs, one of texts.
SETS = {
    "digits": "digits, 10 classes",
    "photographs": "photographs, 10 classes",
    "CLINC150": "sentences (CLINC150), 150 classes",
}
#: Model → what the picture calls it, and its colour.
LINES = {
    DEFAULT: ("acil, in phases or at once", "#1f5fa8"),
    BALANCED: ("logistic regression, balanced, fitted on all", "#d1742b"),
    LOGISTIC: ("logistic regression, fitted on all", "0.55"),
}


def draw(record: dict[str, Any], target: Path) -> None:
    """Draw a panel for each data set of the record that has all lines."""
    sets = [name for name in SETS if all(model in record["sets"].get(name, {}) for model in LINES)]
    if not sets:
        raise SystemExit(f"The record has none of {', '.join(SETS)} with all of {', '.join(LINES)}.")
    figure, axes = plt.subplots(
        1, len(sets), figsize=(3.3 * len(sets), 3.4), sharey=True, squeeze=False, layout="constrained"
    )
    for axis, name in zip(axes[0], sets, strict=True):
        for model, (label, colour) in LINES.items():
            figures = record["sets"][name][model]
            newer, old = ([figures[str(k)][part] for k in FEW] for part in ("newer", "old"))
            axis.plot(FEW, newer, "o-", color=colour, label=label, markersize=4)
            axis.plot(FEW, old, ":", color=colour, linewidth=1.2)
        axis.set_xscale("log")
        axis.set_xticks(FEW, [str(k) for k in FEW])
        axis.xaxis.set_minor_locator(NullLocator())
        axis.set_title(SETS[name], fontsize=10)
        axis.set_xlabel("examples of each new class")
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("recall, % (dotted: of old classes)")
    axes[0][0].set_ylim(0, 102)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    target.parent.mkdir(parents=True, exist_ok=True)
    # Without the version of matplotlib: the same record gives the same file.
    figure.savefig(target, dpi=130, metadata={"Software": None})
    plt.close(figure)


def main(arguments: list[str] | None = None) -> None:
    """Read a record, and draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--record", type=Path, default=RECORD)
    parser.add_argument("--out", type=Path, default=PICTURE)
    options = parser.parse_args(arguments)
    draw(json.loads(options.record.read_text(encoding="utf-8")), options.out)


if __name__ == "__main__":
    main()
