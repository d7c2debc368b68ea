"""A run that failed is a result: a row with a word for numbers, and its message once."""

import csv
import io

import pytest
import torch
from synthetic_records import identity, phase_record, run_records, write_run

from acil.analytic.linalg import cholesky_
from acil.benchmark.report import write_report
from acil.benchmark.report.collect import collect
from acil.benchmark.report.commands import commands
from acil.benchmark.report.failures import failure_notes, reason
from acil.benchmark.report.render import to_csv, to_latex, to_markdown
from acil.benchmark.report.rows import Run
from acil.benchmark.report.tables import ablation_table, main_table, memory_table, overview_table
from acil.errors import SingularMatrixError

MESSAGE = (
    "gram + γI is not positive definite to working precision (γ = 0, {}): pivot {} of 8 is not positive."
)


def settings(gamma, seed=0, dtype="float64", width=8000):
    return {
        "expansion_size": width,
        "gamma": gamma,
        "dtype": dtype,
        "base": 50,
        "classes": 100,
        "backbone": f"natural-{seed}.safetensors@{seed}",
    }


def failure_record(error=MESSAGE, **changes):
    return {"kind": "failure", **identity(**changes), "error": error}


def ablation_records():
    records = []
    for seed in (0, 1, 2):
        for width, gamma, average in ((None, 0.1, 53.0), (8000, 0.1, 66.0)):
            chosen = settings(gamma, seed, width=width)
            records += run_records(suite="ablation", seed=seed, average=average, settings=chosen)
        message = MESSAGE.format("float64", seed + 1)
        records.append(
            failure_record(message, suite="ablation", seed=seed, settings=settings(0.0, seed))
        )
    for gamma in (0.1, 0.0):
        chosen = settings(gamma, dtype="float32")
        records.append(failure_record(MESSAGE.format("float32", 7), suite="ablation", settings=chosen))
    return records


@pytest.fixture
def ablation(tmp_path):
    (comparison,) = collect([write_run(tmp_path / "run", ablation_records())]).suites["ablation"]
    return comparison


def test_ablation_has_rows_for_what_failed_beside_the_papers(ablation):
    lines = to_markdown(ablation_table(ablation)).splitlines()
    assert "K = 5, 1 to 3 seeds)" in lines[0]
    assert lines[2:] == [
        "| Expansion |   γ | dtype   | Seeds | Failed |        Ā (%) | Published Ā | Difference |      A_K (%) |       F (%) |",  # noqa: E501
        "| --------- | --: | ------- | ----: | -----: | -----------: | ----------: | ---------: | -----------: | ----------: |",  # noqa: E501
        "| 8000      |   0 | float32 |     1 |      1 | not solvable |       51.12 |          – |            – |           – |",  # noqa: E501
        "| 8000      | 0.1 | float32 |     1 |      1 | not solvable |       66.30 |          – |            – |           – |",  # noqa: E501
        "| none      | 0.1 | float64 |     3 |      – | 53.00 ± 0.00 |       52.99 |      +0.01 | 57.00 ± 0.00 | 9.00 ± 0.00 |",  # noqa: E501
        "| 8000      |   0 | float64 |     3 |      3 | not solvable |       51.12 |          – |            – |           – |",  # noqa: E501
        "| 8000      | 0.1 | float64 |     3 |      – | 66.00 ± 0.00 |       66.30 |      −0.30 | 57.00 ± 0.00 | 9.00 ± 0.00 |",  # noqa: E501
        "",
        "- Mean ± standard deviation (n − 1) over seeds.",
        "- not solvable (acil (dtype = float32, d = 8000, γ = 0), K = 5, seed 0; 4 more runs likewise): "
        + MESSAGE.format("float32", 7),
        "- Published: Zhuang et al., ACIL, NeurIPS 2022, ablation.",
        "- γ = 0: probably numerical damage rather than a lack of regularization.",
    ]


def test_formats_for_machines_and_papers_have_the_row(ablation):
    table = ablation_table(ablation)
    rows = list(csv.DictReader(io.StringIO(to_csv([table]))))
    assert [row["average_accuracy"] for row in rows] == ["", "", "53.0", "", "66.0"]
    assert [row["failed"] for row in rows] == ["1", "1", "", "3", ""]
    assert "8000 & 0 & float64 & 3 & 3 & not solvable & 51.12 & -- " in to_latex(table)


def test_commands_name_all_seeds_that_were_tried(ablation):
    float32, float64 = commands(ablation, "ablation")
    assert float32.endswith(
        "--seeds 0 --suite ablation --backbone natural-0.safetensors --dtype float32"
    )
    assert float64.endswith("--seeds 0,1,2 --suite ablation --backbone FILE")


def test_page_calls_only_interrupted_runs_unfinished(tmp_path):
    folder = write_run(tmp_path / "run", ablation_records())
    report = write_report(folder)
    page = (folder / "report" / "report.md").read_text(encoding="utf-8")
    assert "Unfinished" not in page
    assert page.count("not positive definite") == 1
    write_run(folder, [phase_record(suite="ablation", seed=9)])
    report = write_report(folder, plots=False)
    assert report.markdown.count("its last phase is 0 of 5") == 1
    assert report.markdown.count("not positive definite") == 1


def test_every_table_and_plot_stands_a_method_that_failed(tmp_path):
    records = [*run_records(), *run_records(phases=10)]
    for k in (5, 10):
        records.append(phase_record(method="lucir", phases=k, settings={"base": 50, "classes": 100}))
        error = "Training diverged: the loss is nan in epoch 3 of 160."
        chosen = {"base": 50, "classes": 100}
        records.append(failure_record(error, method="lucir", phases=k, settings=chosen))
    folder = write_run(tmp_path / "run", records)
    found = collect([folder]).suites
    (main,), (memory,) = found["main"], found["memory"]
    for table, column in ((overview_table(main), 1), (main_table(main), 4), (memory_table(memory), 8)):
        (row,) = {row[column] for row in table.rows if "lucir" in row}
        assert row == "diverged"
    assert not any("diverged:" in note for note in overview_table(main).notes)
    assert sum("Training diverged" in note for note in main_table(main).notes) == 1
    report = write_report(folder)
    # Plots show what there are numbers of: the failed run is in no legend.
    assert len(report.plots) == 5
    assert [row.method for row in main.finished.rows] == ["acil"]


def test_seeds_that_failed_are_told_from_those_averaged(tmp_path):
    records = [*run_records(seed=0, average=60.0), *run_records(seed=1, average=62.0)]
    records += [failure_record("It broke.", seed=2, settings=settings_of(records))]
    (comparison,) = collect([write_run(tmp_path / "run", records)]).suites["main"]
    (row,) = main_table(comparison).rows
    assert row[2:4] == [3, 1]
    assert (row[4].mean, row[4].n) == (61.0, 2)
    assert failure_notes(comparison) == [
        "Failed: seeds without a result; means are over the others.",
        "failed (acil, K = 5, seed 2): It broke.",
    ]


def test_other_failures_share_a_note_only_if_they_differ_in_numbers_alone(tmp_path):
    records = run_records()
    for seed, error in enumerate(("No room for 5 samples.", "No room for 6 samples.", "No data."), 1):
        records.append(failure_record(error, seed=seed, settings=settings_of(records)))
    (comparison,) = collect([write_run(tmp_path / "run", records)]).suites["main"]
    assert failure_notes(comparison)[1:] == [
        "failed (acil, K = 5, seed 1; 1 more run likewise): No room for 5 samples.",
        "failed (acil, K = 5, seed 3): No data.",
    ]


def test_run_that_failed_and_was_finished_later_is_finished(tmp_path):
    failed = write_run(tmp_path / "a", [failure_record()])
    done = write_run(tmp_path / "b", run_records())
    both = write_run(tmp_path / "c", [failure_record(), *run_records()])
    for directories in ([failed, done], [done, failed], [both]):
        found = collect(directories)
        ((_, _, cell),) = found.suites["main"][0].cells()
        assert (len(cell.runs), len(cell.failed), found.unfinished) == (1, 0, ())


def test_run_taken_up_again_after_its_failure_is_unfinished(tmp_path):
    folder = write_run(tmp_path / "run", [failure_record(), phase_record()])
    found = collect([folder])
    assert len(found.unfinished) == 1
    assert not found.suites["main"]


def test_run_that_failed_before_any_phase_stands_alone(tmp_path):
    report = write_report(write_run(tmp_path / "run", [failure_record("It broke.")]))
    assert "No run has finished yet" not in report.markdown
    assert "failed (acil, K = 5, seed 0): It broke." in report.markdown
    assert not report.plots


def test_message_of_the_solver_is_known():
    with pytest.raises(SingularMatrixError) as error:
        cholesky_(torch.zeros(3, 3, dtype=torch.float64), 0.0)
    assert reason(Run({}, (), None, {"error": str(error.value)})) == "not solvable"


def settings_of(records):
    """Return the settings of records, with the classes that a run names which did not see them all."""
    chosen = {**records[0]["settings"], "base": 50, "classes": 100}
    for record in records:
        record["settings"] = chosen
    return chosen
