"""Charts of a report, as SVG that takes its colours from the page: light, dark, any width."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

#: Shades of a cell, cells that tell their pair, and pairs with a number beside the matrix.
_SHADES, _MOST_TOLD = 10, 2000
#: With so many classes cells have numbers in them; names beside a large matrix are so high.
FEW, _NAME = 25, 14
#: Width and height of a chart, and the room at its left and below.
_SIDE, _LEFT, _BELOW = 360, 44, 40
_LONGEST = 24


def reliability(bins: Sequence[tuple[float, float, int]]) -> Markup:
    """Draw (mean probability, share of right ones, number) of samples of about the same probability."""
    most = max((n for *_, n in bins), default=1)
    marks = [
        Markup(
            '<line class="gap" x1="{x}" x2="{x}" y1="{y}" y2="{ideal}"/><circle class="dot" cx="{x}" '
            'cy="{y}" r="{r}"><title>{n:,} samples of {p:.0f} % on average: {share:.0f} % are right'
            "</title></circle>"
        ).format(
            x=_place(p), y=_height(share), ideal=_height(p), r=round(3 + 9 * (n / most) ** 0.5, 1),
            n=n, p=100 * p, share=100 * share,
        )
        for p, share, n in bins
    ]  # fmt: skip
    ideal = Markup('<path class="ideal" d="M{} {}L{} {}"/>').format(
        _place(0), _height(0), _place(1), _height(1)
    )
    axes = _axes(
        [(_place(t), f"{100 * t:.0f}") for t in (0, 0.25, 0.5, 0.75, 1)],
        "probability of the class named, %",
        "of these are right, %",
    )
    return _figure("Probabilities against what was right", axes + ideal + Markup("").join(marks))


def curves(
    xs: npt.NDArray[np.float64], lines: Sequence[tuple[str, npt.NDArray[np.float64]]], mark: float | None
) -> Markup:
    """Draw shares over thresholds on a logarithmic axis; ``mark`` is the threshold in use."""
    low, high = np.log(xs[0]), np.log(xs[-1])

    def across(x: float) -> float:
        return _place((np.log(x) - low) / (high - low))

    drawn = [
        Markup('<path class="line {}" d="{}"/>').format(
            kind, _path((across(x), _height(y)) for x, y in zip(xs, ys, strict=True))
        )
        for kind, ys in lines
    ]
    if mark is not None and xs[0] <= mark <= xs[-1]:
        drawn.append(
            Markup('<line class="mark" x1="{x}" x2="{x}" y1="{top}" y2="{bottom}"/>').format(
                x=across(mark), top=_height(1), bottom=_height(0)
            )
        )
    ticks = [(across(x), f"{x:g}") for x in (0.25, 0.5, 1, 2, 4)]
    axes = _axes(ticks, "novelty beyond which a sample is unknown", "called unknown, %")
    return _figure("Samples called unknown, by threshold", axes + Markup("").join(drawn))


def strip(shares: Sequence[float], names: Sequence[str]) -> Markup:
    """Draw one bar a class, in the order given."""
    n = len(shares)
    bars = [
        Markup(
            '<rect class="{kind}" x="{x}" width="{w}" y="{y}" height="{h}"><title>{name}: {share:.1f} %'
            "</title></rect>"
        ).format(
            kind="bad" if share < 0.5 else "good", x=_short(600 * i / n), w=_short(600 / n * 0.88),
            y=_short(100 - 100 * share), h=max(_short(100 * share), 1), name=name, share=100 * share,
        )
        for i, (share, name) in enumerate(zip(shares, names, strict=True))
    ]  # fmt: skip
    grid = '<path class="grid" d="M0 .5H600M0 50H600M0 100H600"/>'
    return Markup(
        '<svg class="strip" viewBox="0 0 600 101" preserveAspectRatio="none" role="img" '
        'aria-label="Right samples of each class, the worst first">{}{}</svg>'
    ).format(Markup(grid), Markup("").join(bars))


def matrix(
    confusion: npt.NDArray[np.int64], names: Sequence[str], pairs: Sequence[tuple[int, int]]
) -> Markup:
    """Draw a confusion matrix of any number of classes; ``pairs`` of row and column get numbers.

    The first square shows all at a glance, in the width of the page. Of more classes than have room for
    their names, a second has them, as large as it has to be.
    """
    n = len(names)
    totals = confusion.sum(axis=1)
    rows, columns = np.nonzero(confusion)
    counts = confusion[rows, columns]
    shares = counts / np.maximum(totals[rows], 1)
    wrong = rows != columns
    # Errors are few: their shades are relative to the largest, so that they are seen.
    shares[wrong] /= shares[wrong].max(initial=1e-300)
    shade = np.ceil(_SHADES * np.sqrt(shares)).astype(int)
    layers = []
    for kind, on in (("good", ~wrong), ("bad", wrong)):
        for level in range(1, _SHADES + 1):
            at = np.flatnonzero(on & (shade == level))
            if len(at):
                path = "".join(f"M{columns[i]} {rows[i]}h1v1h-1z" for i in at)
                layers.append(
                    Markup('<path class="{}" opacity="{}" d="{}"/>').format(kind, level / _SHADES, path)
                )
    places = np.flatnonzero(wrong)
    told = places[np.argsort(-counts[places], kind="stable")][:_MOST_TOLD]
    layers += [
        Markup(
            '<path class="told" d="M{} {}h1v1h-1z"><title>{} → {}: {:,} of {:,}</title></path>'
        ).format(columns[i], rows[i], names[rows[i]], names[columns[i]], counts[i], totals[rows[i]])
        for i in told
    ]
    step = next(s for s in (1, 5, 10, 50, 100, 500, 1000, 10**9) if n <= 30 * s)
    lines = "".join(f"M{k} 0V{n}M0 {k}H{n}" for k in range(0, n + 1, step))
    cells = Markup('<g id="cells"><path class="frame" d="{}"/>{}</g>').format(
        lines + f"M{n} 0V{n}M0 {n}H{n}", Markup("").join(layers)
    )
    if n <= FEW:
        return _with_names(cells, confusion, names)
    margin = 0.09 * n
    overview = Markup(
        '<svg class="matrix" viewBox="-0.5 -0.5 {w} {h}" role="img" aria-label="Confusion matrix: rows '
        'are true classes, columns the classes named">{cells}{numbers}</svg>'
    ).format(w=_short(n + margin + 0.5), h=n + 1, cells=cells, numbers=_numbers(pairs, n, margin))
    side = n * _NAME
    labels = Markup("").join(
        Markup('<text x="-4" y="{y}" text-anchor="end">{name}</text><text transform="translate({y} -4) '
               'rotate(-90)">{name}</text>').format(y=_NAME * i + 11, name=short(name))
        for i, name in enumerate(names)
    )  # fmt: skip
    large = Markup(
        '<details><summary>Large, with the names of all {n:,} classes</summary><div class="scroll" '
        'tabindex="0" role="region" aria-label="Large confusion matrix"><svg class="large" width="{w}" '
        'height="{w}" viewBox="-160 -160 {w} {w}" role="img" aria-label="Confusion matrix with names">'
        '<use href="#cells" transform="scale({scale})"/>{labels}</svg></div></details>'
    ).format(n=n, w=side + 170, scale=_NAME, labels=labels)
    return overview + large


def short(name: str) -> str:
    """Return a name that fits beside a chart."""
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"


def _with_names(cells: Markup, confusion: npt.NDArray[np.int64], names: Sequence[str]) -> Markup:
    """Draw names beside the cells, and how many samples are in each."""
    n, side = len(names), 36
    shares = confusion / np.maximum(confusion.sum(axis=1, keepdims=True), 1)
    wrong = ~np.eye(n, dtype=bool)
    shares[wrong] /= shares[wrong].max(initial=1e-300)  # as they are shaded
    texts = [
        Markup('<text class="{}" x="{}" y="{}" text-anchor="middle">{:,}</text>').format(
            "on" if shares[i, j] > 0.3 else "off", side * j + side / 2, side * i + side / 2 + 4, count
        )
        for (i, j), count in np.ndenumerate(confusion)
        if count
    ]
    labels = [
        Markup('<text x="-8" y="{y}" text-anchor="end">{name}</text><text transform="translate({x} -8) '
               'rotate(-50)">{name}</text>').format(
            y=side * i + side / 2 + 4, x=side * i + side / 2 + 4, name=short(name))
        for i, name in enumerate(names)
    ]  # fmt: skip
    room = 24 + 7 * min(max(map(len, names)), _LONGEST)
    w, h = n * side + 1.6 * room, n * side + room
    return Markup(
        '<div class="scroll" tabindex="0" role="region" aria-label="Confusion matrix"><svg '
        'class="named" width="{w}" height="{h}" viewBox="{left} {top} {w} {h}" role="img" '
        'aria-label="Confusion matrix: rows are true classes, columns the classes named">'
        '<g transform="scale({side})">{cells}</g>{texts}</svg></div>'
    ).format(
        w=w, h=h, left=-room, top=-room, side=side, cells=cells, texts=Markup("").join(texts + labels)
    )


def _numbers(pairs: Sequence[tuple[int, int]], n: int, margin: float) -> Markup:
    """Draw a number at the right edge for each pair, with a line to its cell."""
    order = sorted(range(len(pairs)), key=lambda k: pairs[k])
    gap, radius = 1.02 * margin * 0.6, margin * 0.27
    ys = [pairs[k][0] + 0.5 for k in order]
    for i in range(len(ys)):  # below each other …
        ys[i] = max(ys[i], radius, ys[i - 1] + gap if i else 0.0)
    for i in reversed(range(len(ys))):  # … and inside
        ys[i] = min(ys[i], n - radius if i == len(ys) - 1 else ys[i + 1] - gap)
    made = []
    for k, y in zip(order, ys, strict=True):
        row, column = pairs[k]
        made.append(
            Markup(
                '<path class="lead" d="M{x} {row}L{edge} {y}"/><circle class="number" cx="{centre}" '
                'cy="{y}" r="{r}"/><text x="{centre}" y="{text}" font-size="{size}" '
                'text-anchor="middle">{number}</text>'
            ).format(
                x=column + 1, row=row + 0.5, edge=_short(n + margin - 2 * radius), y=_short(y),
                centre=_short(n + margin - radius), r=_short(radius), text=_short(y + 0.36 * radius),
                size=_short(1.1 * radius), number=k + 1,
            )
        )  # fmt: skip
    return Markup("").join(made)


def _figure(about: str, inner: Markup) -> Markup:
    return Markup(
        '<svg class="chart" viewBox="0 0 {w} {h}" role="img" aria-label="{about}">{inner}</svg>'
    ).format(
        w=_SIDE + _LEFT + 14, h=_SIDE * 0.75 + _BELOW + 12, about=about, inner=inner
    )  # fmt: skip


def _axes(ticks: Sequence[tuple[float, str]], below: str, beside: str) -> Markup:
    bottom = _height(0)
    marks = [
        Markup('<text x="{x}" y="{y}" text-anchor="middle">{t}</text>').format(
            x=x, y=bottom + 16, t=text
        )
        for x, text in ticks
    ]
    for share in (0, 0.25, 0.5, 0.75, 1):
        marks.append(
            Markup(
                '<path class="grid" d="M{left} {y}H{right}"/><text x="{x}" y="{text}" text-anchor="end">'
                "{share:.0f}</text>"
            ).format(
                left=_LEFT, y=_height(share), right=_place(1), x=_LEFT - 6, text=_height(share) + 4,
                share=100 * share,
            )
        )  # fmt: skip
    titles = Markup(
        '<text class="title" x="{x}" y="{y}" text-anchor="middle">{below}</text><text class="title" '
        'transform="translate(11 {middle}) rotate(-90)" text-anchor="middle">{beside}</text>'
    ).format(
        x=_place(0.5), y=bottom + 34, below=below, middle=(_height(0) + _height(1)) / 2, beside=beside
    )
    return Markup("").join(marks) + titles


def _place(share: float) -> float:
    return _short(_LEFT + share * _SIDE)


def _height(share: float) -> float:
    return _short(8 + (1 - share) * _SIDE * 0.75)


def _path(points: object) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)  # type: ignore[attr-defined]


def _short(value: float) -> float:
    return round(float(value), 2)
