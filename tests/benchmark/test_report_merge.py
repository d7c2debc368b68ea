"""Reports on records of several occasions, and on many methods at once."""

import pytest
from synthetic_records import ENVIRONMENT, run_records, write_run
from typer.testing import CliRunner

from acil.benchmark.report import write_report
from acil.benchmark.report.collect import collect
from acil.benchmark.report.commands import commands, seconds_taken
from acil.cli import app
from acil.errors import InputError

METHODS = ("acil", "bic", "ds-al", "ewc", "fecam", "fetril", "finetune", "icarl", "icarl-bce", "joint")
METHODS += ("lda", "lucir", "lwf", "lwf-exemplars", "ncm", "slda")


def memory(samples=0, statistics=0):
    return {"samples": samples, "statistics": statistics, "weights": 2_000_000}


def test_several_files_in_a_folder_are_one_report(tmp_path):
    for seed in (0, 1, 2):
        folder = write_run(tmp_path / f"run-{seed}", run_records(seed=seed, average=66.0 + seed))
        (tmp_path / "kept").mkdir(exist_ok=True)
        (folder / "records.jsonl").rename(tmp_path / "kept" / f"natural-{seed}.jsonl")
    (comparison,) = collect([tmp_path / "kept"]).suites["main"]
    assert comparison.rows[0].cells[5].over_seeds("average_accuracy").mean == 67.0
    one = collect([tmp_path / "kept" / "natural-1.jsonl"]).suites["main"][0]
    assert len(one.rows[0].cells[5].runs) == 1


def test_same_run_twice_counts_once_and_the_later_of_two_that_differ(tmp_path):
    first = write_run(tmp_path / "first", run_records(seed=0, average=60.0))
    same = write_run(tmp_path / "same", [*run_records(seed=0, average=60.0), *run_records(seed=1)])
    later = write_run(tmp_path / "later", run_records(seed=0, average=62.0))
    merged = collect([first, same])
    assert (merged.repeated, merged.replaced) == (1, 0)
    merged = collect([first, later])
    assert (merged.repeated, merged.replaced) == (0, 1)
    assert merged.suites["main"][0].rows[0].cells[5].over_seeds("average_accuracy").mean == 62.0
    page = write_report([first, later], tmp_path / "out", plots=False).markdown
    assert "with different results: 1; the one given last counts" in page


def test_slower_repetition_of_the_same_run_is_the_same_run(tmp_path):
    slower = [r | {"seconds": 9.0} if r["kind"] == "phase" else r for r in run_records()]
    runs = [write_run(tmp_path / "a", run_records()), write_run(tmp_path / "b", slower)]
    assert (collect(runs).repeated, collect(runs).replaced) == (1, 0)


def test_folder_without_records_is_refused(tmp_path):
    with pytest.raises(InputError, match="no records in"):
        collect([tmp_path])


def test_page_has_title_commands_and_time(tmp_path):
    run = [ENVIRONMENT, *run_records(seed=0), *run_records(seed=1), *run_records(seed=0, method="lwf")]
    file = write_run(tmp_path / "run", run) / "records.jsonl"
    arguments = [
        "bench",
        "report",
        str(file),
        "--out",
        str(tmp_path / "out"),
        "--title",
        "CIFAR-100 | all",
    ]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    page = (tmp_path / "out" / "report.md").read_text()
    assert page.startswith("# CIFAR-100 \\| all\n")
    assert "order natural" in page
    assert (
        "$ acil bench run --dataset cifar100 --method acil,lwf --recipe paper --order natural "
        "--phases 5 --seeds 0,1 --expansion-size 8192\n"
    ) in page
    # 3 runs of 6 phases of 2 seconds
    assert "Time recorded: 36 s" in page


def test_commands_rebuild_what_differs_from_the_recipe(tmp_path):
    settings = {
        "expansion_size": None, "gamma": 1.0, "solver": "recursive", "dtype": "float64", "base": 40,
        "recipe.training.epochs": 3, "memory_rule": "2000 in total", "taps": [],
        "backbone": "natural-0.safetensors@0123456789ab",
    }  # fmt: skip
    folder = write_run(tmp_path / "run", run_records(settings=settings, base=40))
    (comparison,) = collect([folder]).suites["main"]
    (line,) = commands(comparison, "main")
    assert line.startswith("$ acil bench run --dataset cifar100 --method acil --recipe paper ")
    assert line.endswith(
        "--base 40 --backbone natural-0.safetensors --expansion-size none --gamma 1.0 "
        "--solver recursive --set recipe.training.epochs=3 --set 'settings.memory_rule=2000 in total'"
    )


def test_command_of_a_width_suite_names_the_widths(tmp_path):
    records = [
        record
        for width in (512, 1024)
        for record in run_records(suite="width", settings={"expansion_size": width, "gamma": 0.1})
    ]
    (comparison,) = collect([write_run(tmp_path / "run", records)]).suites["width"]
    (line,) = commands(comparison, "width")
    assert line.endswith("--suite width --set 'settings.widths=[512, 1024]'")


def test_time_of_one_pass_for_several_phases_counts_once(tmp_path):
    records = [*run_records(phases=5), *run_records(phases=10)]
    (comparison,) = collect([write_run(tmp_path / "run", records)]).suites["main"]
    assert seconds_taken(comparison) == 22.0


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """All methods under one protocol, as the suite `compare` records them; three seeds, two K."""
    records = []
    for place, method in enumerate(METHODS):
        keeps = method in ("bic", "icarl", "icarl-bce", "lucir", "lwf-exemplars")
        settings = {"expansion_size": 8000, "gamma": 0.1} | (
            {"memory_rule": "20 per class"} if keeps else {}
        )
        for seed in (0, 1, 2):
            for phases in (5, 10):
                records += run_records(
                    suite="compare",
                    method=method,
                    seed=seed,
                    phases=phases,
                    settings=settings,
                    average=40.0 + place + seed,
                    memory=memory(6_144_000 if keeps else 0, 0 if keeps else 256_000_000),
                )
    return write_run(tmp_path_factory.mktemp("compared") / "run", records)


def test_comparison_has_a_row_for_each_method_and_number_of_phases(compared, tmp_path):
    report = write_report([compared], tmp_path, plots=False)
    table = (tmp_path / "main.md").read_text()
    titles = (
        "Ā (%)",
        "A_K (%)",
        "F (%)",
        "Samples kept",
        "Statistics kept",
        "Published Ā",
        "Difference",
    )
    for title in (*titles, "Phase 0 (s)", "Later phases (s)"):
        assert title in table
    csv = (tmp_path / "main.csv").read_text().splitlines()
    assert len(csv) == 1 + 2 * len(METHODS)
    # 16 methods: iCaRL is the eighth in the list, so 47, 48 and 49 over the seeds; the paper has 57.12
    line = next(line for line in report.markdown.splitlines() if line.startswith("|   5 | icarl "))
    assert "48.00 ± 1.00" in line
    assert "57.12" in line
    assert "−9.12" in line
    assert "6.14 MB" in line


def test_curves_of_all_methods_are_told_apart(compared):
    from acil.benchmark.report.plots import accuracy_plot
    from acil.benchmark.report.style import styled

    (comparison,) = collect([compared]).suites["main"]
    with styled():
        figure = accuracy_plot(comparison)
        figure.draw_without_rendering()
    for panel in figure.axes:
        looks = {(line.get_color(), line.get_marker(), line.get_linestyle()) for line in panel.lines}
        assert len(looks) == len(METHODS)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == sorted(METHODS)
    box = legend.get_window_extent()
    assert all(panel.get_tightbbox().y0 >= box.y1 for panel in figure.axes)
