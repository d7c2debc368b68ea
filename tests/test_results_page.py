"""The tables of docs/results.md have the numbers that the records have."""

import json
import re
import shlex
from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev

import pytest

from acil.bench.published import ablation
from acil.bench.report import write_report
from acil.bench.report.collect import collect

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "results" / "cifar100"
PAGE = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
TABLES = ROOT / "docs" / "results"
README = (ROOT / "README.md").read_text(encoding="utf-8")


def records_of(pattern: str) -> list[dict]:
    files = sorted(RECORDS.glob(pattern))
    return [json.loads(line) for path in files for line in path.read_text("utf-8").splitlines()]


def summaries_of(pattern: str) -> list[dict]:
    return [record for record in records_of(pattern) if record["kind"] == "summary"]


def phases_of(pattern: str, classes_seen: int) -> list[dict]:
    found = [record for record in records_of(pattern) if record["kind"] == "phase"]
    return [record for record in found if record["classes_seen"] == classes_seen]


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
    (seed,) = re.findall(r"seed (\d)", recipe) or "*"
    found = summaries(f"{folder}/{order}-{seed}.jsonl", method="acil")
    column = [[record["average_accuracy"] for record in found.get(k, [])] for k in (5, 10, 25, 50)]
    # No row mixes numbers of some seeds with numbers of all.
    whole = [values if len(values) == len(column[0]) else [] for values in column]
    assert averages == " / ".join(spread(values) if values else "–" for values in whole)
    assert last == spread([record["last_accuracy"] for record in found[5]])
    assert forgetting == spread([record["forgetting"] for record in found[5]])


def test_the_papers_ablation():
    records = summaries_of("ablation/natural-?.jsonl")
    for expansion, gamma, paper, *ours in rows(PAGE, "### The paper's ablation"):
        width = None if expansion == "none" else int(expansion)
        known = ablation("cifar100", width is not None, float(gamma))
        assert paper == f"*{known.average_accuracy:.2f}*"
        wanted = {"expansion_size": width, "gamma": float(gamma)}
        found = [r for r in records if wanted.items() <= r["settings"].items()]
        names = ("average_accuracy", "last_accuracy", "forgetting")
        shown = [spread([record[name] for record in found]) for name in names] if found else []
        assert ours == (shown or ["not solvable", "", ""])


def test_base_training_in_float32_beside_half_precision():
    found = summaries("trained/paper-float32/natural-?.jsonl")[5]
    pages = [PAGE, (ROOT / "docs" / "differences.md").read_text(encoding="utf-8")]
    for text in (re.sub(r"\s+", " ", page) for page in pages):
        assert spread([record["average_accuracy"] for record in found]) in text
        assert spread([record["forgetting"] for record in found]) in text
    (both,) = {record["forgetting"] for record in summaries("trained/paper-float32/seed1993-?.jsonl")[5]}
    assert f"In seed1993 F is {both:.2f} for both seeds" in PAGE


def test_resnet18():
    (row,) = [row for row in rows(PAGE, "### ResNet-18") if not row[0].startswith("*")]
    found = summaries("resnet18/seed1993-0.jsonl")
    (last,) = {f"{record['last_accuracy']:.2f}" for (record,) in found.values()}
    averages = " / ".join(f"{found[k][0]['average_accuracy']:.2f}" for k in (5, 10, 25))
    assert row[1:] == ["1", averages, f"{last} for each K"]


def test_memory_follows_from_sizes():
    (statistics,) = {
        r["memory"]["statistics"] for r in phases_of("paper/natural-0.jsonl", classes_seen=100)
    }
    for data, classes, d, *shown in rows(PAGE, "### Memory"):
        c, width = int(classes), int(d)
        pixels = 20 * c * 3 * (32 if data == "CIFAR-100" else 224) ** 2
        kept = 8 * (width * (width + 1) // 2 + width * c)
        assert kept == statistics or data != "CIFAR-100"
        sizes = [pixels / 1e6, 8 * width**2 / 1e6, kept / 1e6]
        # As exact as the digits that are shown
        assert [float(text.replace(",", "")) for text in shown] == pytest.approx(
            sizes, abs=0.5, rel=5e-4
        )


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


def test_networks_that_go_on_learning_stand_beside_the_rows_above():
    small = {(row[0], row[1], row[3]): f"{row[5]} / {row[6]}" for row in SMALL}
    for name, ten, twenty in rows(PAGE[PAGE.index("**Networks that go on learning") :], "| method"):
        if "seed1993" in name:
            recipe = name.partition(",")[0]
            assert ten == small[recipe, "10", "seed1993"]
            assert twenty == small.get((recipe, "5", "seed1993"), "")


def firsts(page: str, heading: str, column: int) -> list[float]:
    """Return the first number of a column of a table."""
    return [float(row[column].split(" / ")[0]) for row in rows(page, heading)]


def test_rows_of_methods_are_sorted_by_their_average_accuracy():
    tables = [
        firsts(PAGE, "## Other methods, recipe `paper`", 3),
        firsts(PAGE, "## Other methods, features of `strong`", 1),
        firsts(README, "## Results", 1),
    ]
    assert all(table == sorted(table, reverse=True) for table in tables)


def test_the_papers_headline_is_said_not_to_hold():
    ours, other = (
        [r["average_accuracy"] for r in found[25]]
        for found in (
            summaries("paper/seed1993-?.jsonl", method="acil"),
            summaries("compare/*.jsonl", method="podnet+aanets+rmm", order="seed1993"),
        )
    )
    for page in (README, PAGE):
        text = re.sub(r"\s+", " ", page)
        assert f"has {mean(other):.2f} at K = 25" in text
        assert f"ACIL {mean(ours):.2f}" in text
    assert mean(other) > mean(ours)


METHODS = [row for row in rows(PAGE, "## Other methods, recipe `paper`") if "the seed of" not in row[0]]


@pytest.mark.parametrize(("name", "seeds", "averages"), [(row[0], row[1], row[3]) for row in METHODS])
def test_other_methods(name, seeds, averages):
    (method, *_) = re.findall(r"`([\w+-]+)", name)
    # Memory rules of the suite "memory" are records of their own.
    files = ["paper/seed1993-*.jsonl"] if method == "acil" else ["compare/*.jsonl"]
    form = "".join(re.findall(r"`mergan`, (\w+)", name))
    files = [f"family/{method}*{form}.jsonl"] if method in ("rotated-ewc", "mergan") else files
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
    shown = [numbers(row[1]) for row in rows(README, "## Results")]
    assert len(shown) == 4
    # Half of the last digit shown
    assert all(any(row == pytest.approx(other, abs=0.0501) for other in ours) for row in shown)


@pytest.mark.slow
@pytest.mark.parametrize("page", ["tables.md", "family.md"])
def test_the_command_of_the_page_makes_the_tables_line_for_line(page, tmp_path, monkeypatch):
    monkeypatch.setattr("acil.bench.report.plots.image_bytes", lambda figure: {"png": b"", "svg": b""})
    found = re.findall(r"^\$ (acil bench report .*?[^\\])$", PAGE, flags=re.MULTILINE | re.DOTALL)
    (command,) = [one for one in found if one.endswith(f"/{page}")]
    words = shlex.split(command.replace("\\\n", " "))[3:]
    start = words.index("--title")
    options = dict(zip(words[start::2], words[start + 1 :: 2], strict=True))
    assert (RECORDS / options["--page"]).resolve() == TABLES / page
    monkeypatch.chdir(RECORDS)
    made, plots = tmp_path / page, options["--plots"].replace("none", "")
    write_report(
        words[:start], tmp_path, [one for one in plots.split(",") if one], options["--title"], made
    )
    assert made.read_text("utf-8").splitlines() == (TABLES / page).read_text("utf-8").splitlines()
