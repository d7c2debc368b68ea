"""The tables of docs/results.md have the numbers that the records have."""

import json
import re
import shlex
from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev

import pytest

from acil.benchmark.report import write_report
from acil.benchmark.report.collect import collect

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "results" / "cifar100"
PAGE = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
TABLES = ROOT / "docs" / "results" / "tables.md"
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


@pytest.fixture(scope="module")
def paper_table(tmp_path_factory) -> dict[tuple[str, int], float]:
    """Return seconds by method and K of the run that made the paper's table, divided among its jobs."""
    # One run: its jobs had the GPU together.
    parts = ("compare/table1-1.jsonl", "trained/table1-acil-1.jsonl")
    run = tmp_path_factory.mktemp("run") / "records.jsonl"
    run.write_text("".join((RECORDS / part).read_text("utf-8") for part in parts), "utf-8")
    collection = collect([run])
    (comparison,) = collection.suites["main"]
    assert not collection.unfinished
    phases = [phase for _, _, cell in comparison.cells() for run in cell.runs for phase in run.phases]
    return seconds_by_cell(phases)


def seconds_by_cell(phases: list[dict]) -> dict[tuple[str, int], float]:
    found: dict[tuple[str, int], float] = defaultdict(float)
    for phase in phases:
        found[phase["method"], phase["phases"]] += phase["seconds"]
    return found


@pytest.mark.parametrize(
    ("name", "seconds"), [(r[0], r[7]) for r in METHODS if r[7] and "acil" not in r[0]]
)
def test_seconds_of_other_methods(name, seconds, paper_table):
    (method, *_) = re.findall(r"`([\w+-]+)", name)
    texts = [
        path.read_text(encoding="utf-8")
        for path in (*RECORDS.glob("compare/*-0.jsonl"), RECORDS / "compare/dgr-1.jsonl")
    ]
    records = [json.loads(line) for text in texts for line in text.splitlines()]
    phases = [r for r in records if r["kind"] == "phase" and r["recipe"] == "paper"]
    cells, mark = (paper_table, "") if name.startswith("●") else (seconds_by_cell(phases), "≤ ")
    shown = [cells[method, k] for k in (5, 10, 25, 50) if (method, k) in cells]
    assert seconds == " / ".join(f"{mark}{cell:,.0f}" for cell in shown)


def test_the_seconds_of_the_papers_table_add_up(paper_table):
    # One pass serves all K of `acil`.
    jobs = {job: cost for job, cost in paper_table.items() if job[0] != "acil" or job[1] == 50}
    page = re.sub(r"\s+", " ", PAGE)
    assert f"Its {len(jobs)} jobs recorded {sum(jobs.values()):,.0f} s of one H200" in page


def test_the_readme_rounds_the_same_numbers():
    def numbers(text: str) -> list[float]:
        return [float(part) for part in text.split(" / ")[:3] if part != "–"]

    ours = [numbers(row[3]) for row in rows(PAGE, "## Other methods, recipe `paper`")]
    shown = [numbers(row[1]) for row in rows(README, "Other methods with the recipe `paper`")]
    assert len(shown) > 10
    # Half of the last digit shown
    assert all(any(row == pytest.approx(other, abs=0.0501) for other in ours) for row in shown)


@pytest.mark.slow
def test_the_command_of_the_page_makes_tables_md_line_for_line(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "acil.benchmark.report.plots.image_bytes", lambda figure: {"png": b"", "svg": b""}
    )
    (command,) = re.findall(r"^\$ (acil bench report .*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    words = shlex.split(command.replace("\\\n", " "))[3:]
    start = words.index("--title")
    options = dict(zip(words[start::2], words[start + 1 :: 2], strict=True))
    assert (RECORDS / options["--page"]).resolve() == TABLES
    monkeypatch.chdir(RECORDS)
    made = tmp_path / "tables.md"
    write_report(words[:start], tmp_path, options["--plots"].split(","), options["--title"], made)
    assert made.read_text("utf-8").splitlines() == TABLES.read_text("utf-8").splitlines()
