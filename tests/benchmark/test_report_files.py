"""A report is written whole, the same every time, and says what is missing."""

import errno
import os
import xml.etree.ElementTree as ET

import matplotlib
import pytest
from PIL import Image
from synthetic_records import ENVIRONMENT, phase_record, run_records, summary_record, write_run

from acil import atomic
from acil.benchmark.environment import environment_record
from acil.benchmark.records import Records
from acil.benchmark.report import write_report
from acil.benchmark.report.collect import collect
from acil.benchmark.report.costs import cost_plot
from acil.benchmark.report.plots import accuracy_plot, forgetting_plot, origin_plot, width_plot
from acil.benchmark.report.style import legend_below, line_style, panels, shortened, styled
from acil.errors import ACILError, InputError

LONG = "somebody.s.package.with.a.long_name.$x$.indeed:MethodNamedAtLength"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    records = [ENVIRONMENT]
    for seed in (0, 1):
        for method in ("acil", "icarl", LONG):
            for k in (5, 10):
                records += run_records(average=60.0 + seed, method=method, seed=seed, phases=k)
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
        for plot in ("accuracy", "forgetting", "cost", "origin-k5", "origin-k10", "width")
        for f in ("png", "svg")
    }
    assert names == tables | plots | {"report.md"}
    assert all(path.parent == run / "report" for path in report.files)
    assert {path.name for path in (run / "report").iterdir()} == names
    assert report.plots[0].name.startswith("accuracy-")


def test_report_shows_every_picture_it_names(run, report):
    page = (run / "report" / "report.md").read_text(encoding="utf-8")
    for picture in report.plots:
        assert f"({picture.name})" in page
    assert "acil 1.2.3, Python 3.12.1, torch 2.11.0, on Some CPU" in page
    assert "other sign" in page


def test_unfinished_runs_are_said(report):
    assert "Unfinished" in report.markdown
    assert (
        "- acil (d = 8192), K = 5, seed 2, on cifar100 (suite main, order natural, recipe paper): its last "
        "phase is 1 of 5" in report.markdown
    )


def test_pictures_are_whole_and_large_enough(report):
    for path in report.plots:
        with Image.open(path) as picture:
            picture.load()
            assert min(picture.size) >= 400
            assert picture.info["dpi"] == pytest.approx((150, 150), abs=0.1)
        assert ET.parse(path.with_suffix(".svg")).getroot().tag.endswith("svg")


def test_same_records_give_the_same_bytes(run, report, tmp_path):
    # Whatever a user has set in matplotlib, and whatever was drawn before.
    with matplotlib.rc_context({"lines.linewidth": 9, "svg.hashsalt": None}):
        again = write_report([run], tmp_path / "again")
    assert [path.name for path in again.files] == [path.name for path in report.files]
    for first, second in zip(report.files, again.files, strict=True):
        assert first.read_bytes() == second.read_bytes(), first.name


def test_drawing_leaves_no_trace_in_matplotlib(run, tmp_path):
    before = dict(matplotlib.rcParams)
    write_report(run, tmp_path)
    assert dict(matplotlib.rcParams) == before
    assert not matplotlib._pylab_helpers.Gcf.figs


def test_run_that_barely_started_has_a_report(tmp_path):
    run = write_run(tmp_path / "run", [ENVIRONMENT])
    report = write_report(run)
    assert [path.name for path in report.files] == ["report.md"]
    assert report.markdown == "No run has finished yet.\n"


def test_summaries_alone_make_tables_but_no_plots(tmp_path):
    report = write_report(write_run(tmp_path / "run", [summary_record()]))
    assert not report.plots
    assert "66.00" in report.markdown


def test_some_rows_without_phases_do_not_stop_the_plots(tmp_path):
    records = [*run_records(), summary_record(method="mine"), summary_record(phases=10)]
    # The classes of a run without phases are unknown: it has a table of its own.
    report = write_report(write_run(tmp_path / "run", records))
    assert report.markdown.count("**Comparison") == 2
    assert len(report.plots) == 4


def test_several_runs_need_a_place_for_their_report(run, tmp_path):
    with pytest.raises(InputError, match="Say where to write"):
        write_report([run, run])
    report = write_report([run, run], tmp_path / "out", plots=False)
    assert "the last directory counts" in report.markdown
    with pytest.raises(InputError, match="nothing to report on"):
        write_report([])


def test_records_file_may_be_given_itself(tmp_path):
    run = write_run(tmp_path / "run", run_records())
    report = write_report(run / "records.jsonl", plots=False)
    assert report.files[0].parent == run / "report"


def test_failed_writing_keeps_the_old_report(tmp_path, monkeypatch):
    run = write_run(tmp_path / "run", run_records())
    write_report(run, plots=False)
    before = {path.name: path.read_bytes() for path in (run / "report").iterdir()}
    write_run(run, run_records(method="mine"))

    def fail(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(atomic.os, "fsync", fail)
    with pytest.raises(ACILError, match="No space left"):
        write_report(run, plots=False)
    assert {path.name: path.read_bytes() for path in (run / "report").iterdir()} == before


def test_report_in_the_place_of_a_file_is_a_clear_error(tmp_path):
    run = write_run(tmp_path / "run", run_records())
    (run / "report").write_text("mine")
    with pytest.raises(ACILError, match="Cannot write"):
        write_report(run, plots=False)
    assert (run / "report").read_text() == "mine"


def test_environment_record_is_valid_and_names_nobody(tmp_path):
    records = Records(tmp_path / "records.jsonl")
    records.append(environment_record("cpu"))
    text = records.path.read_text()
    assert records.read()[0]["device"]["type"] == "cpu"
    assert records.read()[0]["packages"]["torch"]
    assert os.uname().nodename not in text
    assert str(tmp_path) not in text


def figures_of(run):
    with styled():
        suites = collect([run]).suites
        main = suites["main"][0]
        return [
            *(accuracy_plot(main), forgetting_plot(main), cost_plot(main), origin_plot(main, 5)),
            width_plot(suites["width"][0]),
        ]


def test_every_axis_is_labelled_and_every_figure_has_a_title(run):
    for figure in figures_of(run):
        assert "cifar100 (order natural, recipe paper" in figure.get_suptitle()
    for figure in figures_of(run)[:2]:
        assert all(axes.get_ylabel() for axes in figure.axes)


def test_legend_covers_no_panel_and_stays_inside(run):
    for figure in figures_of(run):
        with styled():
            figure.draw_without_rendering()
        for legend in figure.legends:
            box = legend.get_window_extent()
            assert box.x0 >= 0
            assert box.x1 <= figure.bbox.x1
            for axes in figure.axes:
                assert not box.overlaps(axes.get_tightbbox())


def test_legend_of_many_long_names_stays_inside():
    with styled():
        figure, (panel,) = panels(1, 1, "title " * 30, 4, 3, 1)
        lines = [panel.plot([0, 1], [i, i], **line_style(i))[0] for i in range(20)]
        legend_below(figure, lines, [f"_{i} {LONG}" for i in range(20)])
        figure.draw_without_rendering()
    box = figure.legends[0].get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1
    assert not box.overlaps(panel.get_tightbbox())
    assert panel.get_window_extent().height > 1.5 * figure.dpi
    assert len(figure.legends[0].get_texts()) == 20


def test_thirty_two_lines_all_look_different():
    assert len({tuple(line_style(i).values()) for i in range(32)}) == 32


def test_long_names_lose_their_middle():
    assert shortened("short") == "short"
    assert len(shortened(LONG)) == 34
    assert shortened(LONG).startswith("somebody.s")
    assert shortened(LONG).endswith("AtLength")
