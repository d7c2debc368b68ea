"""A report is written whole, the same every time, and says what is missing."""

import os
import sys
import xml.etree.ElementTree as ET

import matplotlib
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from acil.bench.methods.registry import resolve
from acil.bench.records import Records
from acil.bench.report import write_report
from acil.bench.report.collect import collect
from acil.bench.report.page import commands, seconds_taken
from acil.bench.rundir import environment_record
from acil.cli import app
from acil.errors import InputError
from support.synthetic_records import (
    ENVIRONMENT,
    compared,
    phase_record,
    run_records,
    summary_record,
    write_run,
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    records = [ENVIRONMENT]
    for seed in (0, 1):
        for method in ("acil", "icarl"):
            records += run_records(average=60.0 + seed, method=method, seed=seed)
        for width in (None, 512, 1024):
            settings = {"expansion_size": width, "gamma": 0.1}
            records += run_records(suite="width", seed=seed, settings=settings)
        records += run_records(suite="ablation", seed=seed)
    records += [phase_record(seed=2), phase_record(seed=2, phase=1, classes_seen=60)]
    return write_run(tmp_path_factory.mktemp("runs") / "run", records)


@pytest.fixture(scope="module")
def report(run):
    return write_report([run])


def test_report_has_every_table_and_plot(run, report):
    names = {path.name for path in report.files}
    tables = {f"{t}.{f}" for t in ("main", "ablation", "width", "memory") for f in ("md", "csv", "tex")}
    plots = {
        f"{plot}-cifar100-natural-paper-50of100.{f}"
        for plot in ("accuracy", "origin-k5", "width", "memory")
        for f in ("png", "svg")
    }
    assert names == tables | plots | {"report.md"}
    assert all(path.parent == run / "report" for path in report.files)
    assert {path.name for path in (run / "report").iterdir()} == names
    assert report.plots[0].name.startswith("accuracy-")


def test_page_elsewhere_shows_the_chosen_plots_where_they_are(run, tmp_path):
    page = tmp_path / "docs" / "results.md"
    report = write_report([run], tmp_path / "docs" / "results", ["accuracy"], "Results", page)
    assert report.files[-1] == page
    assert not (tmp_path / "docs" / "results" / "report.md").exists()
    assert {path.name for path in report.plots} == {"accuracy-cifar100-natural-paper-50of100.png"}
    text = page.read_text(encoding="utf-8")
    assert text.startswith("# Results")
    assert "(results/accuracy-cifar100-natural-paper-50of100.png)" in text
    assert "origin-" not in text


def test_report_shows_every_picture_whole_and_large_enough(run, report):
    page = (run / "report" / "report.md").read_text(encoding="utf-8")
    for path in report.plots:
        assert f"({path.name})" in page
        with Image.open(path) as picture:
            picture.load()
            assert min(picture.size) >= 400
            assert picture.info["dpi"] == pytest.approx((150, 150), abs=0.1)
        assert ET.parse(path.with_suffix(".svg")).getroot().tag.endswith("svg")
    assert "acil 1.2.3, Python 3.12.1, torch 2.11.0, on Some CPU" in page
    assert "other sign" in page


def test_unfinished_runs_are_said(report):
    assert "Unfinished" in report.markdown
    assert (
        "- acil (d = 8192), K = 5, seed 2, on cifar100 (suite main, order natural, recipe paper): "
        "its last phase is 1 of 5" in report.markdown
    )


def test_same_records_give_the_same_bytes(run, report, tmp_path):
    # Whatever a user has set in matplotlib, and whatever was drawn before.
    with matplotlib.rc_context({"lines.linewidth": 9, "svg.hashsalt": None}):
        before = dict(matplotlib.rcParams)
        again = write_report([run], tmp_path / "again")
        assert dict(matplotlib.rcParams) == before
    assert "matplotlib.pyplot" not in sys.modules or not matplotlib.pyplot.get_fignums()
    assert [path.name for path in again.files] == [path.name for path in report.files]
    for first, second in zip(report.files, again.files, strict=True):
        assert first.read_bytes() == second.read_bytes(), first.name


def test_run_that_barely_started_has_a_report(tmp_path):
    run = write_run(tmp_path / "run", [ENVIRONMENT])
    report = write_report(run)
    assert [path.name for path in report.files] == ["report.md"]
    assert report.markdown == "No run has finished yet.\n"


def test_rows_without_phases_are_in_tables_and_do_not_stop_the_plots(tmp_path):
    report = write_report(write_run(tmp_path / "alone", [summary_record()]))
    assert not report.plots
    assert "66.00" in report.markdown
    records = [*run_records(), summary_record(method="mine"), summary_record(phases=10)]
    # The classes of a run without phases are unknown: it has a table of its own.
    report = write_report(write_run(tmp_path / "run", records))
    assert report.markdown.count("**Comparison") == 2
    assert len(report.plots) == 2


def test_several_runs_need_a_place_for_their_report(run, tmp_path):
    with pytest.raises(InputError, match="where to write"):
        write_report([run, run])
    report = write_report([run, run], tmp_path / "out", plots=False)
    assert "more than once with the same results: 13; each counts once" in report.markdown
    with pytest.raises(InputError, match="nothing"):
        write_report([])
    with pytest.raises(InputError, match=r"kinds .*cost"):
        write_report(run, plots=["cost"])


def test_environment_record_is_valid_and_names_nobody(tmp_path):
    records = Records(tmp_path / "records.jsonl")
    records.append(environment_record(torch.device("cpu")))
    text = records.path.read_text()
    assert records.read()[0]["device"]["type"] == "cpu"
    assert records.read()[0]["packages"]["torch"]
    assert os.uname().nodename not in text
    assert str(tmp_path) not in text


@pytest.mark.parametrize(
    ("suite", "title"),
    [
        ("main", "**Comparison on"),
        ("ablation", "**Ablation of"),
        ("width", "**Accuracy against expansion"),
        ("memory", "**Accuracy against memory"),
    ],
)
def test_what_is_printed_is_the_suite_that_was_run_and_no_other(tmp_path, suite, title):
    settings = {"expansion_size": 512, "gamma": 0.1}
    folder = write_run(tmp_path / "run", run_records(suite=suite, settings=settings))
    text = write_report([folder], plots=False).markdown
    assert title in text
    assert text.count("**") == 2
    assert "66.00" in text


def test_several_files_in_a_folder_are_one_report(tmp_path):
    for seed in (0, 1, 2):
        folder = write_run(tmp_path / f"run-{seed}", run_records(seed=seed, average=66.0 + seed))
        (tmp_path / "kept").mkdir(exist_ok=True)
        (folder / "records.jsonl").rename(tmp_path / "kept" / f"natural-{seed}.jsonl")
    (comparison,) = collect([tmp_path / "kept"]).suites["main"]
    assert comparison.rows[0].cells[5].over_seeds("average_accuracy").mean == 67.0
    report = write_report(tmp_path / "kept" / "natural-1.jsonl", plots=False)
    assert report.files[0].parent == tmp_path / "kept" / "report"
    assert "1 seed)" in report.markdown


def test_same_run_twice_counts_once_and_the_later_of_two_that_differ(tmp_path):
    first = write_run(tmp_path / "first", run_records(seed=0, average=60.0))
    same = write_run(tmp_path / "same", [*run_records(seed=0, average=60.0), *run_records(seed=1)])
    later = write_run(tmp_path / "later", run_records(seed=0, average=62.0))
    merged = collect([first, same])
    assert (merged.repeated, merged.replaced) == (1, 0)
    slower = [r | {"seconds": 9.0} if r["kind"] == "phase" else r for r in run_records(average=60.0)]
    merged = collect([first, write_run(tmp_path / "slower", slower)])
    assert (merged.repeated, merged.replaced) == (1, 0)
    # Suites that share the main table share its runs.
    merged = collect([first, write_run(tmp_path / "suite", run_records(average=60.0, suite="compare"))])
    assert (merged.repeated, merged.replaced) == (1, 0)
    merged = collect([first, later])
    assert (merged.repeated, merged.replaced) == (0, 1)
    assert merged.suites["main"][0].rows[0].cells[5].over_seeds("average_accuracy").mean == 62.0
    page = write_report([first, later], tmp_path / "out", plots=False).markdown
    assert "with different results: 1; the one given last counts" in page


def test_folder_without_records_is_refused(tmp_path):
    with pytest.raises(InputError, match="no records in"):
        collect([tmp_path])


def test_page_has_title_commands_and_time(tmp_path):
    run = [ENVIRONMENT, *run_records(seed=0), *run_records(seed=1), *run_records(seed=0, method="ds-al")]
    file = write_run(tmp_path / "run", run) / "records.jsonl"
    title = ("--title", "CIFAR-100 | all")
    result = CliRunner().invoke(
        app, ["bench", "report", str(file), "--out", str(tmp_path / "out"), *title]
    )
    assert result.exit_code == 0, result.output
    page = (tmp_path / "out" / "report.md").read_text()
    assert page.startswith("# CIFAR-100 \\| all\n")
    assert "order natural" in page
    for method, seeds in (("acil", "0,1"), ("ds-al", "0")):
        assert (
            f"$ acil bench run --dataset cifar100 --method {method} --recipe paper --order natural "
            f"--phases 5 --seeds {seeds} --expansion-size 8192\n"
        ) in page
    # 3 runs of 6 phases of 2 seconds
    assert "Time recorded: 36 s" in page


def test_commands_rebuild_what_differs_from_the_recipe(tmp_path):
    settings = {
        "expansion_size": None, "gamma": 1.0, "solver": "recursive", "dtype": "float64", "base": 40,
        "recipe.training.epochs": 3, "memory_rule": "2000 in total", "taps": [],
        "backbone": "natural-0.safetensors@0123456789ab",
    }  # fmt: skip
    folder = write_run(tmp_path / "run", run_records(method="mine:Own", settings=settings, base=40))
    (comparison,) = collect([folder]).suites["main"]
    (line,) = commands(comparison, "main")
    assert line.startswith("$ acil bench run --dataset cifar100 --method mine:Own --recipe paper ")
    assert line.endswith(
        "--base 40 --backbone natural-0.safetensors --expansion-size none --gamma 1.0 "
        "--solver recursive --set recipe.training.epochs=3 --set 'settings.memory_rule=2000 in total'"
    )


def test_methods_as_they_are_share_a_command(tmp_path):
    made = [
        run_records(
            method=name, settings={"gamma": 0.1, **resolve(name).recorded_settings({}), **change}
        )
        for name, change in (("lucir", {}), ("bic", {}), ("podnet+rmm", {"podnet_proxies": 3}))
    ]
    lines = commands(compared(tmp_path, [record for records in made for record in records]), "main")
    assert [line.partition("--method ")[2].split()[0] for line in lines] == ["bic,lucir", "podnet+rmm"]
    assert [line.partition("--seeds 0")[2] for line in lines] == ["", " --set settings.podnet_proxies=3"]


def test_command_of_a_part_of_the_classes_names_their_number(tmp_path):
    (line,) = commands(compared(tmp_path, run_records(base=30, classes=60)), "main")
    assert "--classes 60" in line
    assert "--base" not in line
    # Of other data sets nobody knows how many classes there are, and which of them are the base.
    (line,) = commands(compared(tmp_path / "cub", run_records(dataset="cub:birds")), "main")
    assert "--classes 100 --base 50" in line


def test_command_of_a_width_suite_names_the_widths(tmp_path):
    records = [
        record
        for width in (512, 1024)
        for record in run_records(suite="width", settings={"expansion_size": width, "gamma": 0.1})
    ]
    comparison = compared(tmp_path, records, "width")
    (line,) = commands(comparison, "width")
    assert line.endswith("--suite width --set 'settings.widths=[512, 1024]'")


def test_time_of_one_pass_for_several_phases_counts_once(tmp_path):
    fine, coarse = run_records(phases=10), run_records(phases=5)
    # 6 phases of 2 seconds and 11 of 2: two jobs, whose times add up.
    (comparison,) = collect([write_run(tmp_path / "two", [*fine, *coarse])]).suites["main"]
    assert seconds_taken(comparison) == 34.0
    # One pass: what is learnt between two coarse phases counts for the later one.
    first = next(record for record in coarse if record.get("phase") == 0)
    first["seconds"] = 12.0
    (comparison,) = collect([write_run(tmp_path / "one", [*fine, *coarse])]).suites["main"]
    assert seconds_taken(comparison) == 22.0
