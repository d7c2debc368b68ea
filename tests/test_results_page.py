"""The tables of docs/results.md have the numbers that the records have."""

import json
import re
from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev

import pytest

from acil.benchmark.report.collect import collect

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "results" / "cifar100"
PAGE = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")


def summaries(*patterns: str, **wanted: str) -> dict[int, list[dict]]:
    """Return the summaries of record files, one for each seed, by number of phases K."""
    found: dict[int, dict[int, dict]] = defaultdict(dict)
    for path in (path for pattern in patterns for path in sorted(RECORDS.glob(pattern))):
        for record in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
            if record["kind"] == "summary" and all(record[key] == wanted[key] for key in wanted):
                found[record["phases"]][record["seed"]] = record
    return {phases: list(by_seed.values()) for phases, by_seed in found.items()}


def rows(page: str, heading: str) -> list[list[str]]:
    """Return the cells of the first table below a heading, without its head."""
    below = page[page.index(f"\n{heading}") :]
    (table, *_) = re.findall(r"(?:^\|.*\n)+", below, flags=re.MULTILINE)
    lines = [line.strip().strip("|") for line in table.splitlines()[2:]]
    return [[cell.strip() for cell in line.split("|")] for line in lines]


def spread(values: list[float]) -> str:
    return f"{mean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


#: Published rows are in italics.
MEASURED = [row for row in rows(PAGE, "## ACIL by recipe") if not re.match(r"\*[^*]", row[0])]


@pytest.mark.parametrize(("recipe", "order", "averages", "last", "forgetting"), MEASURED)
def test_acil_by_recipe(recipe, order, averages, last, forgetting):
    folder = re.sub(r"[^\w-]", "", recipe.split(",")[0]) + (
        "-no-mirror" if "without mirror" in recipe else ""
    )
    found = summaries(f"{folder}/{order}-*.jsonl", method="acil")
    column = [[record["average_accuracy"] for record in found.get(k, [])] for k in (5, 10, 25, 50)]
    assert averages == " / ".join(spread(values) if values else "–" for values in column)
    assert last == spread([record["last_accuracy"] for record in found[5]])
    assert forgetting == spread([record["forgetting"] for record in found[5]])


SMALL = rows(PAGE[PAGE.index("Ten steps of ten") :], "| recipe")


@pytest.mark.parametrize("row", SMALL, ids=" ".join)
def test_small_bases(row):
    recipe, base, phases, order, *shown = row
    name = f"small-base/{recipe.strip('`')}-{order}-base{base}-0.jsonl"
    ((summary,),) = summaries(name).values()
    first, *_ = (RECORDS / name).read_text(encoding="utf-8").splitlines()[1:]
    found = [json.loads(first)["accuracy"], summary["average_accuracy"], summary["last_accuracy"]]
    assert shown == [*(f"{value:.2f}" for value in found), f"{summary['forgetting']:.1f}"]
    assert summary["phases"] == int(phases)


@pytest.mark.parametrize("row", rows(PAGE, "## Size of the base"), ids=" ".join)
def test_size_of_the_base(row):
    recipe, base, *shown = row
    recipe = recipe.strip("`")
    prefix = "" if recipe == "paper" else f"{recipe}-"
    files = [f"base-size/{prefix}base{base}-0.jsonl"]
    if base == "50":
        files = [f"{recipe}/natural-{seed}.jsonl" for seed in range(3)]
    found = [record for file in files for record in summaries(file, method="acil")[5]]
    firsts = []
    for file in files:
        records = map(json.loads, (RECORDS / file).read_text(encoding="utf-8").splitlines()[1:])
        firsts += [record["accuracy"] for record in records if record.get("phase") == 0][:1]
    names = ("average_accuracy", "last_accuracy")
    means = [mean(firsts), *(mean(record[name] for record in found) for name in names)]
    forgotten = mean(record["forgetting"] for record in found)
    assert shown == [*(f"{value:.2f}" for value in means), f"{forgotten:.1f}"]


METHODS = [row for row in rows(PAGE, "## Other methods, recipe `paper`") if "the seed of" not in row[0]]


@pytest.mark.parametrize(("name", "seeds", "averages"), [(row[0], row[1], row[3]) for row in METHODS])
def test_other_methods(name, seeds, averages):
    (method, *_) = re.findall(r"`([\w+-]+)", name)
    # Memory rules of the suite "memory" are records of their own.
    files = ["paper/seed1993-*.jsonl"] if method == "acil" else ["compare/*.jsonl"]
    found = summaries(*files, method=method, recipe="paper", order="seed1993", suite="main")
    found = found or summaries(*files, method=method, recipe="paper", order="seed1993")
    columns = (5, 10, 25, 50) if method in ("acil", "podnet") else (5, 10, 25)
    expected = [[record["average_accuracy"] for record in found.get(k, [])] for k in columns]
    assert averages == " / ".join(f"{mean(values):.2f}" if values else "–" for values in expected)
    numbers = [str(len(values) or "–") for values in expected]
    assert seeds in (" / ".join(numbers), numbers[0] if len(set(numbers)) == 1 else "")


#: Rows of methods that train at each phase, with the seconds that their jobs recorded
TIMED = [row for row in METHODS if row[7]]


@pytest.mark.parametrize(("name", "seconds"), [(row[0], row[7]) for row in TIMED])
def test_seconds_of_other_methods(name, seconds):
    (method, *_) = re.findall(r"`([\w+-]+)", name)
    found = summaries("compare/*-0.jsonl", method=method, recipe="paper", order="seed1993")
    columns = [record["seconds"] for k in (5, 10, 25) for record in found.get(k, [])]
    assert seconds == " / ".join(f"{value:,.0f}" for value in columns)


def test_the_seconds_of_the_papers_table_add_up():
    ours = [row[7].replace(",", "") for row in TIMED if row[0].startswith("●")]
    total = sum(int(part) for cell in ours for part in cell.split(" / "))
    (said,) = re.findall(r"these shared seconds add up to ([\d,]+)", PAGE)
    assert int(said.replace(",", "")) == pytest.approx(total, abs=12)  # each is rounded


def test_seconds_of_jobs_that_say_when_they_ended():
    (comparison,) = collect([RECORDS / "compare" / "podnet-1.jsonl"]).suites["main"]
    found = {
        (row.method, k): cell.seconds(lambda phase: True).mean for k, row, cell in comparison.cells()
    }
    (total, *said) = re.findall(
        r"add up to (\d+) s, at K = 5 (\d+) of `podnet`, (\d+) of `podnet\+aanets` and (\d+) of\s+"
        r"`podnet\+aanets\+rmm`, and the (\d+)\.",
        PAGE,
    )[0]
    methods = ("podnet", 5), ("podnet+aanets", 5), ("podnet+aanets+rmm", 5), ("podnet", 50)
    assert said == [f"{found[method]:.0f}" for method in methods]
    assert total == f"{sum(found.values()):.0f}"


def test_the_readme_rounds_the_same_numbers():
    def numbers(text: str) -> list[float]:
        return [float(part) for part in text.split(" / ")[:3] if part != "–"]

    ours = [numbers(row[3]) for row in rows(PAGE, "## Other methods, recipe `paper`")]
    shown = [numbers(row[1]) for row in rows(README, "Other methods with the recipe `paper`")]
    assert len(shown) > 10
    # Half of the last digit shown
    assert all(any(row == pytest.approx(other, abs=0.0501) for other in ours) for row in shown)
