"""Tables of docs/results.md are the records': the analytic family, long tails, streams, digits."""

import json
from pathlib import Path
from statistics import mean, stdev

import pytest
from scipy.stats import t

from test_results_page import PAGE, rows

RESULTS = Path(__file__).parents[1] / "results"
FAMILY, CIFAR = "## The analytic family", RESULTS / "cifar100"


def table(heading: str, number: int = 0) -> dict[str, list[str]]:
    """Return a table below a heading: the cells after the name of a method, by that name."""
    below = PAGE[PAGE.index(f"\n{heading}") :]
    for _ in range(number):
        below = below[below.index("\n|") :]
        below = below[below.index("\n\n") :]
    return {row[0].strip("`*"): row[1:] for row in rows("\n" + heading + below, heading)}


def summaries(*files: str, **wanted: str) -> dict[tuple[str, int, int], dict]:
    """Return summaries by method, K and seed."""
    paths = [path for file in files for path in sorted(RESULTS.glob(file))]
    lines = [json.loads(line) for path in paths for line in path.read_text("utf-8").splitlines()]
    found = [line for line in lines if line["kind"] == "summary"]
    chosen = [one for one in found if all(one[key] == wanted[key] for key in wanted)]
    return {(one["method"], one["phases"], one["seed"]): one for one in chosen}


def values(records: dict, method: str, phases: int, key: str) -> list[float]:
    return [one[key] for (name, k, _), one in records.items() if (name, k) == (method, phases)]


def spread(found: list[float]) -> str:
    return f"{mean(found):.2f}" + (f" ± {stdev(found):.2f}" if len(found) > 1 else "")


def paired(records: dict, method: str, phases: int, key: str) -> str:
    """Return the mean difference to acil and half its 95 % interval; 0 where there is none."""
    ours, theirs = (values(records, name, phases, key) for name in (method, "acil"))
    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    if not any(differences):
        return "0"
    n = len(differences)
    half = t.ppf(0.975, n - 1) * stdev(differences) / n**0.5
    shown = f"{mean(differences):+.2f}".replace("-", "−")
    return f"{'0.00' if shown.strip('+−') == '0.00' else shown} ± {half:.2f}"


@pytest.mark.parametrize(("number", "recipe"), [(0, "paper"), (1, "strong")])
def test_the_family_at_equal_width(number, recipe):
    records = summaries(f"cifar100/family/{recipe}-*.jsonl")
    shown = table(FAMILY, number)
    assert set(shown) == {method for method, _, _ in records}
    for method, cells in shown.items():
        columns = [values(records, method, k, "average_accuracy") for k in (5, 10, 25)]
        assert cells[0] == " / ".join(f"{mean(column):.2f}" for column in columns)
        differences = [paired(records, method, k, "average_accuracy") for k in (5, 10, 25)]
        assert cells[1] in ("" if method == "acil" else " / ".join(differences), *set(differences))
        last = [f"{mean(values(records, method, k, 'last_accuracy')):.2f}" for k in (5, 10, 25)]
        assert cells[2] == " / ".join(dict.fromkeys(last))


def test_widths_of_their_own():
    for name, cells in table("### Widths of their own").items():
        recipe, method = name.replace("`", "").split(", ")
        records = summaries(f"cifar100/{recipe}/natural-[0-2].jsonl", method="acil")
        records |= summaries(f"cifar100/family/own-{recipe}-*.jsonl")
        (width,) = {one["settings"]["expansion_size"] for key, one in records.items() if method in key}
        columns = [values(records, method, k, "average_accuracy") for k in (5, 10, 25)]
        differences = [paired(records, method, k, "average_accuracy") for k in (5, 10, 25)]
        last = [f"{mean(values(records, method, k, 'last_accuracy')):.2f}" for k in (5, 10, 25)]
        lost = [f"{mean(values(records, method, k, 'forgetting')):.1f}" for k in (5, 10, 25)]
        assert cells[:-1] == [
            str(width),
            " / ".join(f"{mean(column):.2f}" for column in columns),
            "" if method == "acil" else " / ".join(differences),
            " / ".join(dict.fromkeys(last)),
            " / ".join(dict.fromkeys(lost)),
        ]
        if method != "acil":  # whose records are of a core that kept more
            use = records[method, 5, 0]["memory"]
            assert cells[-1] == f"{(use['samples'] + use['statistics']) / 1e6:.0f} MB"


@pytest.mark.parametrize("method", ["acil", "ds-al", "gkeal"])
def test_the_authors_rows(method):
    shown = {name.split("`")[0]: cells for name, cells in table("### The authors' rows").items()}
    records = summaries("cifar100/family/*authors*.jsonl")
    keys = ("average_accuracy", "last_accuracy")
    assert shown[method][:2] == [spread(values(records, method, 25, key)) for key in keys]
    assert shown[method][2] == f"{mean(values(records, method, 25, 'forgetting')):.1f}"


@pytest.mark.parametrize(("number", "order"), [(0, "natural"), (1, "seed1993")])
def test_long_tails(number, order):
    records = summaries("cifar100/long-tailed/*.jsonl", order=order)
    shown = table("### Long tails", number)
    assert set(shown) == {method for method, _, _ in records}
    for method, cells in shown.items():
        averages = [spread(values(records, method, k, "average_accuracy")) for k in (5, 10)]
        groups = [values(records, method, 5, f"accuracy_{name}") for name in ("many", "medium", "few")]
        assert cells == [
            " / ".join(averages),
            spread(values(records, method, 5, "last_accuracy")),
            " / ".join(f"{mean(group):.1f}" for group in groups),
            f"{mean(values(records, method, 5, 'forgetting')):.1f}",
            "" if method == "acil" else paired(records, method, 5, "last_accuracy"),
        ]


@pytest.mark.parametrize("order", ["natural", "seed1993"])
def test_pooled_balance_follows_exact_weights_and_is_far_ahead_of_none(order):
    records = summaries("cifar100/long-tailed/*.jsonl", order=order)
    last = {name: mean(values(records, name, 5, "last_accuracy")) for name in ("acil", "air", "g-air")}
    assert abs(last["g-air"] - last["air"]) <= 1
    assert last["g-air"] - last["acil"] >= 6


def test_streams():
    records = summaries("cifar100/si-blurry/*.jsonl")
    for method, cells in table("### Streams that share classes").items():
        keys = ("anytime_accuracy", "average_accuracy", "last_accuracy")
        assert cells[:3] == [spread(values(records, method, 5, key)) for key in keys]
        assert cells[3] == f"{mean(values(records, method, 5, 'forgetting')):.1f}"
        differences = [paired(records, method, 5, key) for key in (keys[0], keys[2])]
        assert cells[4:] == (["", ""] if method == "acil" else differences)
    assert max(values(records, "acil", 5, "joint_difference")) < 2.75e-12
    assert "2.7e-12" in PAGE
    assert not any(map(len, values(records, "acil", 5, "never_shown")))


def test_strict_memory():
    records = summaries("cifar100/memory/strict-*.jsonl")
    for method, cells in table("### Strict memory").items():
        keys = {"average_accuracy": ".2f", "last_accuracy": ".2f", "forgetting": ".1f"}
        found = [records[method, k, 0] for k in (5, 10, 25)]
        assert cells[:3] == [
            " / ".join(format(one[key], form) for one in found) for key, form in keys.items()
        ]
        compared = summaries("cifar100/compare/*-0.jsonl", method=method, order="seed1993")
        averages = [f"{compared[method, k, 0]['average_accuracy']:.2f}" for k in (5, 10, 25)]
        assert cells[3].strip("*") == " / ".join(averages)


def test_digits():
    keys = ("average_accuracy", "last_accuracy")
    for name, cells in table("### Two trained systems on digits").items():
        method, _, form = name.partition("`, ")
        method = method.partition("`")[0]
        files = "mergan-alignment" if form == "alignment" else "[cg]*"
        records = summaries(f"digits/{files}.jsonl")
        assert cells[:2] == [spread(values(records, method, 3, key)) for key in keys]


@pytest.mark.parametrize(
    ("heading", "file"),
    [("**CLINC150", "clinc150-minilm"), ("**Photographs", "photos-efficientnet-lite0")],
)
def test_features_of_pretrained_networks(heading, file):
    page = (RESULTS.parent / "docs" / "pretrained.md").read_text("utf-8")
    records = summaries(f"pretrained/{file}.jsonl")
    phases = max(k for _, k, _ in records)
    for name, *cells in rows(page, heading):
        method = name.split("`")[1]
        for cell, key in zip(cells, ("average_accuracy", "last_accuracy"), strict=False):
            found = values(records, method, phases, key)
            assert cell in (spread(found), f"{found[0]:.2f}" if len(set(found)) == 1 else "")
