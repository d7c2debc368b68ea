"""Plots: labelled, titled, legends beside the data, readable with many methods and with one."""

import math

import pytest

from acil.bench.report.collect import collect
from acil.bench.report.plots import (
    accuracy_plot,
    grid,
    legend_below,
    line_style,
    memory_plot,
    origin_plot,
    panels,
    phases_plot,
    styled,
    width_plot,
)
from acil.bench.report.tables import suite_table
from support.synthetic_records import compared, run_records, write_run

LONG = "somebody.s.package.with.a.long_name.$x$.indeed:MethodNamedAtLength"


@pytest.fixture(scope="module")
def suites(tmp_path_factory):
    records = []
    for seed in (0, 1):
        for method in ("acil", "icarl", LONG):
            for k in (5, 10):
                records += run_records(average=60.0 + seed, method=method, seed=seed, phases=k)
        for width in (None, 512, 1024):
            settings = {"expansion_size": width, "gamma": 0.1}
            records += run_records(suite="width", seed=seed, settings=settings)
    return collect([write_run(tmp_path_factory.mktemp("runs") / "run", records)]).suites


@pytest.fixture(scope="module")
def drawn(suites):
    (main,), (width,) = suites["main"], suites["width"]
    with styled():
        figures = {
            "accuracy": accuracy_plot(main),
            "phases": phases_plot(main),
            "origin": origin_plot(main, 5),
            "width": width_plot(width),
        }
        for figure in figures.values():
            figure.draw_without_rendering()
    return figures


def beside_the_panels(legend, figure):
    box = legend.get_window_extent()
    covered = [axes for axes in figure.axes if box.overlaps(axes.get_tightbbox())]
    return box.x0 >= 0 and box.x1 <= figure.bbox.x1 and not covered


#: Names and units of the axes of each figure.
LABELS = {
    "accuracy": [("classes seen", "accuracy, all classes seen (%)")] * 2,
    "phases": [("phases K (logarithmic)", "average accuracy Ā (%)")],
    "origin": [("phase in which the classes came", "tested after phase")] * 3 + [("", "accuracy (%)")],
    "width": [("expansion size d (features, logarithmic)", "average accuracy Ā (%)")],
}


@pytest.mark.parametrize("name", LABELS)
def test_figure_has_a_title_labels_and_a_legend_beside_its_panels(drawn, name):
    figure = drawn[name]
    assert "cifar100 (order natural, recipe paper" in figure.get_suptitle()
    assert [(axes.get_xlabel(), axes.get_ylabel()) for axes in figure.axes] == LABELS[name]
    assert bool(figure.legends) == (name != "origin")
    assert all(beside_the_panels(legend, figure) for legend in figure.legends)


@pytest.mark.parametrize(
    ("name", "scale", "lines"),
    [
        ("accuracy", "linear", [([50, 60, 70, 80, 90, 100], [70, 69, 68, 67, 66, 65])] * 3),
        ("phases", "log", [([5, 10], [60.5, 60.5])]),
        # The second line is the level without an expansion.
        ("width", "log", [([512, 1024], [66, 66])] * 2),
    ],
)
def test_lines_are_the_records(drawn, name, scale, lines):
    panel = drawn[name].axes[0]
    assert panel.get_xscale() == scale
    found = [(list(line.get_xdata()), list(line.get_ydata())) for line in panel.lines]
    assert found[: len(lines)] == lines


def test_panels_and_ticks_are_numbers_of_phases(drawn):
    assert [panel.get_title() for panel in drawn["accuracy"].axes] == ["K = 5", "K = 10"]
    (panel,) = drawn["phases"].axes
    assert [tick.get_text() for tick in panel.get_xticklabels()] == ["5", "10"]


def test_heat_map_is_empty_above_the_diagonal(drawn):
    matrix = drawn["origin"].axes[0].images[0].get_array()
    assert matrix.shape == (6, 6)
    assert matrix[5, 0] == 65
    assert matrix[0, 0] == 70
    assert matrix.mask[0, 1]
    assert not matrix.mask[5].any()


@pytest.mark.parametrize(
    ("draw", "records", "suite"),
    [
        (phases_plot, [*run_records(method="acil"), *run_records(method="icarl")], "main"),
        (width_plot, run_records(suite="width"), "width"),
        (memory_plot, run_records(), "memory"),
    ],
    ids=["one K", "one width", "one point"],
)
def test_too_little_makes_no_plot(tmp_path, draw, records, suite):
    assert draw(compared(tmp_path, records, suite)) is None


def test_one_method_and_one_seed_have_neither_band_nor_error_bar(tmp_path):
    with styled():
        assert not accuracy_plot(compared(tmp_path, run_records())).axes[0].collections


def test_legend_of_many_long_names_stays_inside(suites):
    with styled():
        figure, (panel,) = panels("title", suites["main"][0], 1, 4, 3)
        lines = {f"_{i} {LONG}": panel.plot([0, 1], [i, i], **line_style(i))[0] for i in range(20)}
        legend_below(figure, lines)
        figure.draw_without_rendering()
    assert beside_the_panels(figure.legends[0], figure)
    assert panel.get_window_extent().height > 1.5 * figure.dpi
    assert len(figure.legends[0].get_texts()) == 20


def test_thirty_two_lines_all_look_different_and_panels_have_room():
    for parts in (("color", "linestyle"), ("color", "marker", "markerfacecolor")):
        assert len({tuple(line_style(i)[part] for part in parts) for i in range(32)}) == 32
    for n in range(1, 20):
        rows, columns = grid(n)
        assert rows == math.ceil(n / columns)
        assert columns <= 3


def test_memory_plot_has_a_line_for_each_method_whatever_it_keeps(tmp_path):
    records = []
    for width in (1024, 2048, 4096):
        settings = {"expansion_size": width, "gamma": 0.1}
        kept = {"samples": 0, "statistics": 4 * width * width, "weights": 1}
        records += run_records(suite="memory", settings=settings, memory=kept, average=50 + width / 1e3)
    for budget in (5, 10, 20, 50):
        settings = {"expansion_size": 8000, "gamma": 0.1, "memory_rule": f"{budget} per class"}
        kept = {"samples": budget * 307_200, "statistics": 0, "weights": 1}
        for method in ("icarl", "lucir"):
            records += run_records(
                suite="memory", method=method, settings=settings, memory=kept, average=40 + budget / 5
            )
    nothing = {"samples": 0, "statistics": 0, "weights": 1}
    records += run_records(suite="compare", method="finetune", memory=nothing, average=23.0)
    comparison = compared(tmp_path, records, "memory")
    with styled():
        figure = memory_plot(comparison)
    (panel,), (legend,) = figure.axes, figure.legends
    # The highest line first, as in the panel.
    assert [text.get_text() for text in legend.get_texts()] == ["acil", "icarl", "lucir", "finetune"]
    lines = [list(line.get_xdata()) for line in panel.lines]
    assert lines[0] == [4 * width * width for width in (1024, 2048, 4096)]
    assert lines[1] == [0, 1]  # keeps nothing: its level, across the panel
    # Its colour comes again after eight lines, its marker does not.
    assert panel.lines[1].get_marker() == line_style(1)["marker"]
    assert lines[2] == lines[3] == [budget * 307_200 for budget in (5, 10, 20, 50)]
    assert "bytes" in panel.get_xlabel()
    assert "%" in panel.get_ylabel()


def test_memory_table_sorts_samples_and_statistics_together(tmp_path):
    few, many = ({"samples": s, "statistics": t, "weights": 1} for s, t in ((5_000, 0), (0, 9_000)))
    records = [
        *run_records(memory=many),
        *run_records(method="icarl", settings={"memory_rule": "20 per class"}, memory=few),
    ]
    comparison = compared(tmp_path, records, "memory")
    table = suite_table("memory", comparison)
    assert [row[1] for row in table.rows] == ["icarl", "acil"]
    assert [row[6] for row in table.rows] == [5_000, 9_000]
