"""Records become runs, rows and comparisons; runs of several base sizes become one table."""

import csv
import io
import math

import pytest
from typer.testing import CliRunner

from acil.bench.report import write_report
from acil.bench.report.collect import collect
from acil.bench.report.page import commands, seconds_taken
from acil.bench.report.plots import base_plot, styled
from acil.bench.report.render import to_csv, to_markdown
from acil.bench.report.rows import Stat, stat
from acil.bench.report.tables import suite_table
from acil.cli import app
from support.synthetic_records import (
    ENVIRONMENT,
    compared,
    phase_record,
    run_records,
    summary_record,
    write_run,
)


def test_one_value_has_no_deviation():
    assert stat([5.0]).std is None
    assert stat([None]) is None
    assert stat([None, 3.0]) == Stat(3.0, None)


def test_seeds_are_averaged_and_settings_kept_apart(tmp_path):
    records = [
        record
        for gamma in (0.1, 0.01)
        for seed in (0, 1)
        for record in run_records(
            seed=seed, average=60.0 + seed, settings={"gamma": gamma, "dtype": "x"}
        )
    ]
    comparison = compared(tmp_path, records)
    assert [row.label for row in comparison.rows] == ["acil (γ = 0.01)", "acil (γ = 0.1)"]
    cell = comparison.rows[0].cells[5]
    assert cell.over_seeds("average_accuracy").mean == 60.5
    assert cell.over_seeds("average_accuracy").std == pytest.approx(math.sqrt(0.5))
    assert (comparison.base_classes, comparison.classes) == (50, 100)


@pytest.mark.parametrize(
    ("method", "given", "rows"),
    [
        ("ncm", {"fecam_tukey": 1, "memory_rule": "9 per class", "increment.epochs": 3}, 1),
        ("finetune", {"rmm_actions": [0.5], "lucir_margin": 0.1}, 1),
        ("finetune", {"increment.epochs": 3}, 2),
        ("fecam", {"fecam_tukey": 1}, 2),
        ("podnet+rmm", {"rmm_actions": [0.5]}, 2),
        ("ncm", {"recipe.training.epochs": 3}, 2),
        ("ncm", {"expansion_size": 3, "gamma": 2, "solver": "gram", "dtype": "float32"}, 1),
        ("ncm", {"recipe.expansion_size": 3, "recipe.gamma": 2}, 1),
        ("ds-al", {"expansion_size": 3}, 2),
        ("klda", {"expansion_size": 3}, 2),
        ("klda", {"gamma": 2}, 1),
        ("nowhere.to_be_found:Method", {"fecam_tukey": 1}, 2),
        ("of-a-later-version", {"fecam_tukey": 1}, 2),
    ],
)
def test_settings_of_other_methods_make_no_rows(tmp_path, method, given, rows):
    plain = run_records(seed=0, method=method, settings={"gamma": 1})
    other = run_records(seed=1, method=method, settings={"gamma": 1, **given})
    assert len(compared(tmp_path, [*plain, *other]).rows) == rows


def test_seconds_of_jobs_side_by_side_are_divided_among_them(tmp_path):
    def of_job(method, k, seconds, *ends):
        at = {"method": method, "phases": k}
        return [
            *(
                phase_record(i, seconds=seconds, **at) | {"job": method, "ended": e}
                for i, e in enumerate(ends)
            ),
            summary_record(**at),
        ]

    # ncm works from 0 to 8, lda from 4 to 10; one pass of it has phases of K = 2 and of K = 1.
    records = [*of_job("ncm", 1, 4.0, 4.0, 8.0), *of_job("lda", 2, 2.0, 6.0, 8.0, 10.0)]
    records += of_job("lda", 1, 3.0, 7.0, 10.0)
    # A copy of some records, as in files put together, is no other job.
    comparison = compared(tmp_path, [*records, *records[:2]])
    found = {
        (row.method, k): cell.seconds(lambda phase: True).mean for k, row, cell in comparison.cells()
    }
    # Half of the time from 4 to 8 is ncm's.
    assert found == {("ncm", 1): 6.0, ("lda", 2): 4.0, ("lda", 1): 4.0}
    assert seconds_taken(comparison) == 10.0


def test_curve_is_the_mean_of_the_phases(tmp_path):
    records = run_records(seed=0) + [
        {**record, "accuracy": 60.0} if record["kind"] == "phase" else record
        for record in run_records(seed=1)
    ]
    comparison = compared(tmp_path, records)
    curve = comparison.rows[0].cells[5].curve()
    assert [seen for seen, _ in curve] == [50, 60, 70, 80, 90, 100]
    assert [mean.mean for _, mean in curve] == [65.0, 64.5, 64.0, 63.5, 63.0, 62.5]


def test_of_records_of_one_phase_or_two_summaries_the_last_counts(tmp_path):
    records = [phase_record(accuracy=1.0), *run_records(average=50.0), phase_record(accuracy=2.0)]
    (comparison,) = collect([write_run(tmp_path, [*records, summary_record(average=60.0)])]).suites[
        "main"
    ]
    cell = comparison.rows[0].cells[5]
    assert cell.first_accuracy().mean == 2.0
    assert cell.over_seeds("average_accuracy").mean == 60.0


def test_records_of_a_choice_are_not_those_of_a_run(tmp_path):
    texts = dict.fromkeys(("dataset", "order", "recipe", "candidate", "identity"), "x")
    choice = {"kind": "choice", **texts, "split": 0, "accuracy": {}, "network_inputs": 1}
    records = [choice, *run_records()]
    (comparison,) = collect([write_run(tmp_path, records)]).suites["main"]
    assert len(comparison.rows) == 1


def test_orders_recipes_and_classes_do_not_share_a_table(tmp_path):
    records = [
        *run_records(),
        *run_records(order="seed1993"),
        *run_records(recipe="strong"),
        *run_records(dataset="digits", base=5, classes=10),
    ]
    first, second = write_run(tmp_path / "a", records), write_run(tmp_path / "b", run_records(base=20))
    comparisons = collect([first, second]).suites["main"]
    assert [(c.dataset, c.order, c.recipe, c.base_classes) for c in comparisons] == [
        ("cifar100", "natural", "paper", 20),
        ("cifar100", "natural", "paper", 50),
        ("cifar100", "natural", "strong", 50),
        ("cifar100", "seed1993", "paper", 50),
        ("digits", "natural", "paper", 5),
    ]
    assert [c.is_published_protocol for c in comparisons] == [False, True, True, True, False]
    from_zero = compared(tmp_path / "c", run_records(settings={"base": 0}))
    assert (from_zero.base_classes, from_zero.classes) == (0, 100)
    assert not from_zero.is_published_protocol


def test_suites_have_tables_of_their_own(tmp_path):
    suites = ("main", "compare", "ablation", "width", "memory", "mine")
    records = [r for i, suite in enumerate(suites) for r in run_records(suite=suite, method=f"m{i}")]
    found = collect([write_run(tmp_path, records)]).suites
    methods = {suite: [row.method for c in found[suite] for row in c.rows] for suite in found}
    assert methods == {
        "main": ["m0", "m1", "m5"],
        "base": [],
        "ablation": ["m2"],
        "width": ["m3"],
        "memory": ["m0", "m1", "m4", "m5"],
        "long-tailed": [],
        "si-blurry": [],
    }


def test_unfinished_run_is_named_unless_finished_elsewhere(tmp_path):
    half = [phase_record(), phase_record(phase=1, classes_seen=60)]
    started = write_run(tmp_path / "a", [ENVIRONMENT, *half])
    found = collect([started])
    assert [run.identity["method"] for run in found.unfinished] == ["acil"]
    assert not any(found.suites.values())
    done = write_run(tmp_path / "b", run_records())
    for directories in ([started, done], [done, started]):
        found = collect(directories)
        assert not found.unfinished
        assert len(found.suites["main"]) == 1


def test_network_file_of_each_seed_is_no_variant(tmp_path):
    def runs(files):
        return [r for seed, file in files for r in run_records(seed=seed, settings={"backbone": file})]

    ours = collect([write_run(tmp_path / "a", runs([(0, "s0.safetensors"), (1, "s1.safetensors")]))])
    assert [len(row.cells[5].runs) for row in ours.suites["main"][0].rows] == [2]
    other = collect([write_run(tmp_path / "b", runs([(0, "a.safetensors"), (0, "b.safetensors")]))])
    assert [row.label for row in other.suites["main"][0].rows] == [
        "acil (backbone = a.safetensors)",
        "acil (backbone = b.safetensors)",
    ]
    kinds = collect([write_run(tmp_path / "c", runs([(0, "resnet18"), (1, "resnet32")]))])
    assert len(kinds.suites["main"][0].rows) == 2


def test_summary_without_phases_still_makes_a_row(tmp_path):
    comparison = compared(tmp_path, [summary_record()])
    cell = comparison.rows[0].cells[5]
    assert cell.over_seeds("average_accuracy").mean == 66.0
    assert (cell.kept("samples"), cell.peak(), cell.seconds(lambda phase: True)) == (None, None, None)


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
    assert to_markdown(suite_table("base", comparison)) == TABLE
    rows = list(csv.DictReader(io.StringIO(to_csv([suite_table("base", comparison)]))))
    assert [row["base_classes"] for row in rows] == ["10", "50", "90"]
    assert [float(row["average_accuracy"]) for row in rows] == [40.0, 66.5, 69.0]
    assert {(row["classes"], row["order"]) for row in rows} == {("100", "natural")}


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
    records = [*size_records(10), *size_records(30)]
    assert base_of(tmp_path / "two", records) == ()
    assert base_of(tmp_path / "three", [*records, *size_records(90, **changes)]) == ()
    assert base_of(tmp_path / "alike", [*records, *size_records(90)])


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
    methods = [("acil", {}), ("lda", {"lda_shrinkage": 0.1}), ("lda", {"lda_shrinkage": 2.0})]
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
    names = ["acil", "lda (lda_shrinkage = 0.1)", "lda (lda_shrinkage = 2)"]
    assert [text.get_text() for text in legend.get_texts()] == names
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
    assert [
        path for path in report.plots if path.name.startswith("origin-k5-cifar100-natural-paper-50of100")
    ]
    assert TABLE in report.markdown
    assert "10 of 100 classes" not in report.markdown
    # What is left out of the page is still in the files.
    assert "10 of 100 classes" in (run / "report" / "main.md").read_text(encoding="utf-8")
    assert "\ncifar100,natural,paper,10,100," in (run / "report" / "main.csv").read_text()


def test_size_with_a_second_method_keeps_its_section(tmp_path):
    folder = write_run(tmp_path / "run", [*sized_records(), *size_records(90, method="lda")])
    text = write_report(folder, plots=False).markdown
    assert "**Comparison on cifar100 (order natural, recipe paper, 90 of 100" in text
    assert "**Comparison on cifar100 (order natural, recipe paper, 10 of 100" not in text


def test_plots_are_those_asked_for(run, tmp_path):
    for kinds, drawn in (("base", 1), ("none", 0), ("accuracy", 3)):
        out = tmp_path / kinds
        arguments = ["bench", "report", str(run), "--out", str(out), "--plots", kinds]
        assert CliRunner().invoke(app, arguments).exit_code == 0
        plots = [path.name for path in out.glob("*.png")]
        assert (len(plots), {name.partition("-")[0] for name in plots} - {kinds}) == (drawn, set())
        page = (out / "report.md").read_text(encoding="utf-8")
        assert all(f"({name})" in page for name in plots)
