"""The page about an evaluation: one file that needs no network and runs no script."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from acil.core.files.writing import replacing
from acil.errors import InputError
from acil.growing import charts
from acil.growing.results import Evaluation, Prediction

#: Confused pairs, examples on either side of one, and samples that are shown as doubtful or mislabelled.
_PAIRS, _EXAMPLES, _DOUBTFUL, _MISLABELLED = 12, 4, 24, 36
#: Share of the samples whose names are listed as probably mislabelled.
_LISTED = 0.04
#: Classes shown at once; characters of a text.
_WORST, _LETTERS = 12, 280
#: Classes that are sorted by who is confused with whom, at most: that takes n² numbers.
_MOST_SORTED = 1500
_BINS = np.linspace(0, 1, 11)
_THRESHOLDS = np.geomspace(0.2, 5.0, 61)


def write_report(evaluation: Evaluation, path: str | os.PathLike[str], name: str = "") -> None:
    """Write the page about an evaluation, whole or not at all, for its owner alone (mode 600)."""
    page = render(evaluation, name)
    with replacing(path, mode=0o600) as draft:
        draft.write_text(page, encoding="utf-8")


def render(evaluation: Evaluation, name: str = "") -> str:
    """Return the page as HTML; ``name`` says which model it is about."""
    from jinja2 import Environment, StrictUndefined

    place = files("acil.growing")
    style = place.joinpath("report.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(place.joinpath("report.html").read_text(encoding="utf-8"))
    content = _content(evaluation)
    return template.render(
        name=name or "this model",
        style=Markup(style),
        style_hash=digest,
        evaluation=evaluation,
        **content,
    )


@dataclass(frozen=True)
class _Card:
    """One sample as the page shows it."""

    image: str
    picture: str | None  # base64 of a JPEG
    text: str | None
    truth: str
    prediction: Prediction


@dataclass(frozen=True)
class _Class:
    """How the samples of one class did."""

    name: str
    right: int
    samples: int
    unknown: int
    instead: str  # the class that is named most often instead, and how often; "" if none is

    @property
    def recall(self) -> float:
        return self.right / self.samples


class _Cards:
    """Makes cards, and counts those that show something of a sample."""

    def __init__(self, evaluation: Evaluation) -> None:
        self._shown = evaluation.shown
        self._made: dict[str, str | bytes | None] = {}

    def __call__(self, pairs: Iterable[tuple[str, Prediction]]) -> list[_Card]:
        return [self._card(truth, prediction) for truth, prediction in pairs]

    def _card(self, truth: str, prediction: Prediction) -> _Card:
        name = prediction.image
        if name not in self._made:
            try:
                self._made[name] = None if self._shown is None else self._shown(name)
            except InputError:  # the file has gone since
                self._made[name] = None
        made = self._made[name]
        picture = base64.b64encode(made).decode() if isinstance(made, bytes) else None
        text = _cut(made) if isinstance(made, str) else None
        return _Card(_cut(name), picture, text, truth, prediction)

    @property
    def pictures(self) -> int:
        return sum(isinstance(made, bytes) for made in self._made.values())

    @property
    def texts(self) -> int:
        return sum(isinstance(made, str) for made in self._made.values())


def _cut(text: str) -> str:
    """Return the beginning of a text, or of the name of a sample, which may be a text."""
    return text if len(text) <= _LETTERS else f"{text[:_LETTERS]}…"


def _content(evaluation: Evaluation) -> dict[str, Any]:
    """Return what the page is made of."""
    cards = _Cards(evaluation)
    learnt = [*evaluation.wrong, *evaluation.right]
    classes = _classes(evaluation)
    pairs = _pairs(evaluation, cards)
    shown = _order(evaluation.confusion)
    names = [evaluation.classes[i] for i in shown]
    at = {int(i): k for k, i in enumerate(shown)}
    bins = _bins(learnt)
    first = evaluation.wrong[: int(np.ceil(_LISTED * evaluation.images))]
    listed = [_cut(prediction.image) for _, prediction in first]
    doubtful = sorted(learnt, key=lambda pair: -pair[1].closeness)[:_DOUBTFUL]
    content = {
        "classes": classes,
        "worst": classes[:_WORST] if len(classes) > 2 * _WORST else classes,
        "strip": charts.strip([c.recall for c in classes], [c.name for c in classes]),
        "balanced": 100 * float(np.mean([c.recall for c in classes])),
        "pairs": pairs,
        "matrix": charts.matrix(
            evaluation.confusion[np.ix_(shown, shown)],
            names,
            [(at[p["row"]], at[p["column"]]) for p in pairs],
        ),
        "sorted": len(shown) > charts.FEW,
        "reliability": charts.reliability(bins),
        "off": 100 * sum(n * abs(p - share) for p, share, n in bins) / evaluation.images,
        "doubtful": cards(doubtful),
        "mislabelled": cards(evaluation.wrong[:_MISLABELLED]),
        "listed": listed,
        "novelty": _novelty(evaluation),
        "unknown": sum(evaluation.unknown.values()),
    }
    return {**content, "pictures": cards.pictures, "texts": cards.texts}


def _classes(evaluation: Evaluation) -> list[_Class]:
    """Return the classes that have samples, the worst first."""
    made = []
    for i, row in enumerate(evaluation.confusion):
        samples, right = int(row.sum()), int(row[i])
        if not samples:
            continue
        others = row.copy()
        others[i] = 0
        most = int(others.argmax())
        instead = f"{evaluation.classes[most]} ({others[most]:,})" if others[most] else ""
        name = evaluation.classes[i]
        made.append(_Class(name, right, samples, evaluation.unknown.get(name, 0), instead))
    return sorted(made, key=lambda c: (c.recall, -c.samples))


def confused(confusion: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return the pairs of true class and another that is named, the most frequent first."""
    rows, columns = np.nonzero(confusion)
    wrong = rows != columns
    rows, columns = rows[wrong], columns[wrong]
    order = np.argsort(-confusion[rows, columns], kind="stable")
    return list(zip(rows[order].tolist(), columns[order].tolist(), strict=True))


def _pairs(evaluation: Evaluation, cards: _Cards) -> list[dict[str, Any]]:
    """Return the pairs most often confused, with examples of either side."""
    totals = evaluation.confusion.sum(axis=1)
    pairs = []
    for row, column in confused(evaluation.confusion)[:_PAIRS]:
        truth, named = evaluation.classes[row], evaluation.classes[column]
        wrong = [(t, p) for t, p in evaluation.wrong if t == truth and p.top[0][0] == named]
        usual = [(t, p) for t, p in reversed(evaluation.right) if t == named][:_EXAMPLES]
        pairs.append(
            {
                "row": row,
                "column": column,
                "truth": truth,
                "named": named,
                "count": int(evaluation.confusion[row, column]),
                "of": int(totals[row]),
                "back": int(evaluation.confusion[column, row]),
                "wrong": cards(wrong[:_EXAMPLES]),
                "usual": cards(usual),
            }
        )
    return pairs


def _order(confusion: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the classes that have anything to show; of many, those that are confused side by side."""
    totals = confusion.sum(axis=1)
    shown = np.flatnonzero((totals > 0) | (confusion.sum(axis=0) > 0))
    if not charts.FEW < len(shown) <= _MOST_SORTED:
        return shown
    from scipy.cluster.hierarchy import leaves_list, linkage
    from scipy.spatial.distance import squareform

    shares = (confusion / np.maximum(totals, 1)[:, None])[np.ix_(shown, shown)]
    near = shares + shares.T
    np.fill_diagonal(near, 0)
    distances = 1 - near / max(float(near.max()), 1e-300)
    np.fill_diagonal(distances, 0)
    tree = linkage(squareform(distances, checks=False), "average")
    ordered: npt.NDArray[np.int64] = shown[leaves_list(tree)]
    return ordered


def _bins(learnt: list[tuple[str, Prediction]]) -> list[tuple[float, float, int]]:
    """Return mean probability, share of right ones and number of samples, by probability."""
    p = np.array([prediction.top[0][1] for _, prediction in learnt])
    right = np.array([prediction.top[0][0] == truth for truth, prediction in learnt])
    places = np.clip(np.searchsorted(_BINS, p, side="right") - 1, 0, len(_BINS) - 2)
    return [
        (float(p[places == k].mean()), float(right[places == k].mean()), int((places == k).sum()))
        for k in range(len(_BINS) - 1)
        if (places == k).any()
    ]


def _novelty(evaluation: Evaluation) -> dict[str, Any] | None:
    """Return how many samples each threshold would call unknown; None if the model cannot tell."""
    groups = {
        "learnt": [p.novelty for _, p in (*evaluation.right, *evaluation.wrong)],
        "mistaken": [p.novelty for _, p in evaluation.wrong],
        "strange": [p.novelty for _, p in evaluation.strange],
    }
    if None in groups["learnt"]:
        return None
    values = {kind: np.array(group, dtype=np.float64) for kind, group in groups.items() if group}

    def above(xs: npt.NDArray[np.float64], group: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        shares: npt.NDArray[np.float64] = (group[None] > xs[:, None]).mean(axis=1)
        return shares

    curves = [(kind, above(_THRESHOLDS, group)) for kind, group in values.items()]
    few = np.array(sorted({0.5, 0.75, 1.0, 1.5, 2.0, evaluation.unknown_above or 1.0}))
    columns = {kind: 100 * above(few, group) for kind, group in values.items()}
    rows = [
        {"at": x, **{kind: column[i] for kind, column in columns.items()}} for i, x in enumerate(few)
    ]
    return {
        "kinds": list(values),
        "chart": charts.curves(_THRESHOLDS, curves, evaluation.unknown_above),
        "rows": rows,
    }
