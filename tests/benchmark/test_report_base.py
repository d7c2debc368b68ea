"""Runs that differ in the number of base classes: one table, one plot, no section for each."""

import csv
import io

import pytest
from synthetic_records import run_records, write_run
from typer.testing import CliRunner

from acil.benchmark.report import write_report
from acil.benchmark.report.baseplot import base_plot
from acil.benchmark.report.collect import collect
from acil.benchmark.report.commands import commands
from acil.benchmark.report.render import to_csv, to_markdown
from acil.benchmark.report.style import styled
from acil.benchmark.report.tables import base_table
from acil.cli import app

FILES = {0: "n-0.safetensors@aa", 1: "n-1.safetensors@bb"}
PLOT = "base-cifar100-natural-paper-100-classes.png"

TABLE = """\
**Accuracy against the size of the base on cifar100 (order natural, recipe paper, 100 classes, K = 5, 1 to 2 seeds)**

| Base classes | Seeds |      A_0 (%) |        Ā (%) |      A_K (%) |       F (%) |
| -----------: | ----: | -----------: | -----------: | -----------: | ----------: |
|           10 |     1 |        70.00 |        40.00 |        57.00 |        9.00 |
|           50 |     2 | 70.00 ± 0.00 | 66.50 ± 0.71 | 57.00 ± 0.00 | 9.00 ± 0.00 |
|           90 |     1 |        70.00 |        69.00 |        57.00 |        9.00 |

- Mean ± standard deviation (n − 1) over seeds.
- A_0: accuracy after phase 0, on the base classes alone.
- All other numbers of these runs are in main.csv.
"""  # noqa: E501


def size_records(base, average=60.0, network="resnet32", **changes):
    settings = {"expansion_size": 8000, "gamma": 0.1, "base": base, "classes": 100}
    settings |= {"backbone": network} | changes.pop("settings", {})
    return run_records(base=base, average=average, settings=settings, **changes)


def half_records():
    """Return the size that the paper has: a network from a file for each seed, and several K."""
    return [
        record
        for seed, file in FILES.items()
        for k in (5, 10)
        for record in size_records(50, 66.0 + seed, file, seed=seed, phases=k)
    ]


def sized_records():
    return [*size_records(10, 40.0), *half_records(), *size_records(90, 69.0)]


def base_of(folder, records):
    return collect([write_run(folder / "run", records)]).suites["base"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("sizes") / "run", sized_records())


@pytest.fixture(scope="module")
def report(run):
    return write_report(run)


def test_three_sizes_make_a_table_at_the_k_that_all_have(tmp_path):
    (comparison,) = base_of(tmp_path, sized_records())
    assert to_markdown(base_table(comparison)) == TABLE


def test_csv_has_the_size_once(tmp_path):
    (comparison,) = base_of(tmp_path, sized_records())
    rows = list(csv.DictReader(io.StringIO(to_csv([base_table(comparison)]))))
    assert [row["base_classes"] for row in rows] == ["10", "50", "90"]
    assert [float(row["average_accuracy"]) for row in rows] == [40.0, 66.5, 69.0]
    assert {(row["classes"], row["order"], row["recipe"]) for row in rows} == {
        ("100", "natural", "paper")
    }


def test_two_sizes_make_no_table(tmp_path):
    assert base_of(tmp_path, [*size_records(10), *half_records()]) == ()


@pytest.mark.parametrize(
    "changes",
    [
        {"order": "seed1993"},
        {"recipe": "authors"},
        {"method": "lda"},
        {"phases": 2},
        {"classes": 120},
        {"settings": {"gamma": 1.0}},
        {"network": "resnet18"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_size_that_differs_in_more_does_not_count(tmp_path, changes):
    records = [*size_records(10), *size_records(30), *size_records(90, **changes)]
    assert base_of(tmp_path, records) == ()


def test_size_run_in_two_ways_takes_the_one_with_more_seeds(tmp_path):
    records = [*sized_records(), *size_records(50, 12.0, seed=0)]
    (comparison,) = base_of(tmp_path, records)
    averages = [cell.over_seeds("average_accuracy").mean for _, _, cell in comparison.cells()]
    assert averages == [40.0, 66.5, 69.0]


def test_commands_give_each_size_its_own(tmp_path):
    (comparison,) = base_of(tmp_path, sized_records())
    start = "$ acil bench run --dataset cifar100 --method acil --recipe paper --order natural --phases 5"
    assert commands(comparison, "base") == [
        f"{start} --seeds 0 --base 10",
        f"{start} --seeds 0,1 --backbone FILE",
        f"{start} --seeds 0 --base 90",
    ]


def test_plot_has_a_line_for_each_method_and_setting(tmp_path):
    methods = [("acil", {}), ("lda", {}), ("lda", {"gamma": 2.0})]
    records = [
        record
        for method, settings in methods
        for base in (10, 30, 50)
        for record in size_records(base, 40.0 + base, method=method, settings=settings)
    ]
    (comparison,) = base_of(tmp_path, records)
    with styled():
        figure = base_plot(comparison)
    assert "order natural, recipe paper" in figure.get_suptitle()
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["acil", "lda (γ = 0.1)", "lda (γ = 2)"]
    for panel in figure.axes:
        assert [list(line.get_xdata()) for line in panel.lines] == [[10, 30, 50]] * 3
    assert list(figure.axes[0].lines[0].get_ydata()) == [50.0, 70.0, 90.0]
    assert list(figure.axes[2].lines[0].get_ydata()) == [70.0] * 3
    assert list(figure.axes[3].lines[0].get_ydata()) == [9.0] * 3
    # One scale for all accuracies, with room for every marker; forgetting begins at 0 or below.
    ((low, high),) = {panel.get_ylim() for panel in figure.axes[:3]}
    assert low < 50
    assert high > 90
    assert figure.axes[3].get_ylim()[0] <= 0
    assert [panel.get_ylabel().split()[0] for panel in figure.axes] == [
        *("average", "last", "accuracy", "forgetting"),
    ]


def test_sizes_of_the_table_have_no_section_and_no_plots_of_their_own(run, report):
    page = (run / "report" / "report.md").read_text(encoding="utf-8")
    assert f"]({PLOT})" in page
    assert page.count("**Comparison on") == page.count("**Accuracy against memory on") == 1
    assert not [path for path in report.plots if "10of100" in path.name or "90of100" in path.name]
    assert [path for path in report.plots if path.name.startswith("cost-cifar100-natural-paper-50of100")]
    # What is left out of the page is still in the files.
    assert "10 of 100 classes" in (run / "report" / "main.md").read_text(encoding="utf-8")
    assert "\ncifar100,natural,paper,10,100," in (run / "report" / "main.csv").read_text()


def test_what_is_printed_has_the_table_instead_of_sections(report):
    assert TABLE in report.markdown
    assert "10 of 100 classes" not in report.markdown


def test_size_with_a_second_method_keeps_its_section(tmp_path):
    folder = write_run(tmp_path / "run", [*sized_records(), *size_records(90, method="lda")])
    text = write_report(folder, plots=False).markdown
    assert "**Comparison on cifar100 (order natural, recipe paper, 90 of 100" in text
    assert "**Comparison on cifar100 (order natural, recipe paper, 10 of 100" not in text


def test_plots_option_knows_base(run, tmp_path):
    for kinds, drawn in (("base", {PLOT}), ("none", set())):
        out = tmp_path / kinds
        result = CliRunner().invoke(
            app, ["bench", "report", str(run), "--out", str(out), "--plots", kinds]
        )
        assert result.exit_code == 0, result.output
        assert {path.name for path in out.glob("*.png")} == drawn


def test_accuracy_plots_that_were_asked_for_are_drawn_for_every_size(run, tmp_path):
    report = write_report(run, tmp_path, ["accuracy"])
    assert len(report.plots) == 3
    page = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert all(f"({path.name})" in page for path in report.plots)
