"""Plots: labelled, titled, legends beside the data, readable with many methods and with one."""

import math

import pytest
from synthetic_records import compared, run_records, write_run

from acil.benchmark.report.collect import collect
from acil.benchmark.report.plots import (
    accuracy_plot,
    cost_plot,
    forgetting_plot,
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
from acil.benchmark.report.tables import memory_table

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
            "forgetting": forgetting_plot(main),
            "cost": cost_plot(main),
            "origin": origin_plot(main, 5),
            "width": width_plot(width),
        }
        for figure in figures.values():
            figure.draw_without_rendering()
    return figures


NAMES = ["accuracy", "phases", "forgetting", "cost", "origin", "width"]


@pytest.mark.parametrize("name", NAMES)
def test_figure_has_a_title_that_names_data_order_and_recipe(drawn, name):
    assert "cifar100 (order natural, recipe paper" in drawn[name].get_suptitle()


def test_axes_have_names_and_units(drawn):
    found = {
        name: [(axes.get_xlabel(), axes.get_ylabel()) for axes in figure.axes]
        for name, figure in drawn.items()
    }
    assert found == {
        "accuracy": [("classes seen", "accuracy, all classes seen (%)")] * 2,
        "phases": [("phases K (logarithmic)", "average accuracy Ā (%)")],
        "forgetting": [("", "forgetting F (percentage points)")],
        "cost": [
            ("", "time of the phase (s)"),
            ("", ""),
            ("phase", "memory, weights included"),
            ("phase", ""),
        ],
        "origin": [("phase in which the classes came", "tested after phase")] * 3
        + [("", "accuracy (%)")],
        "width": [("expansion size d (features, logarithmic)", "average accuracy Ā (%)")],
    }


@pytest.mark.parametrize("name", NAMES)
def test_legend_covers_no_panel_and_stays_inside(drawn, name):
    figure = drawn[name]
    assert bool(figure.legends) == (name != "origin")
    for legend in figure.legends:
        box = legend.get_window_extent()
        assert box.x0 >= 0
        assert box.x1 <= figure.bbox.x1
        for axes in figure.axes:
            assert not box.overlaps(axes.get_tightbbox())


def test_lines_are_the_records(drawn):
    panel = drawn["accuracy"].axes[0]
    assert panel.get_title() == "K = 5"
    assert len(panel.lines) == 3
    assert list(panel.lines[0].get_xdata()) == [50, 60, 70, 80, 90, 100]
    assert list(panel.lines[0].get_ydata()) == [70, 69, 68, 67, 66, 65]


def test_average_accuracy_has_a_point_for_each_number_of_phases(drawn):
    (panel,) = drawn["phases"].axes
    assert list(panel.lines[0].get_xdata()) == [5, 10]
    assert list(panel.lines[0].get_ydata()) == [60.5, 60.5]
    assert [tick.get_text() for tick in panel.get_xticklabels()] == ["5", "10"]


def test_width_is_logarithmic_with_a_level_for_no_expansion(drawn):
    (panel,) = drawn["width"].axes
    assert panel.get_xscale() == "log"
    assert list(panel.lines[0].get_xdata()) == [512, 1024]
    assert list(panel.lines[1].get_ydata()) == [60 + 6.0] * 2


def test_heat_map_is_empty_above_the_diagonal(drawn):
    matrix = drawn["origin"].axes[0].images[0].get_array()
    assert matrix.shape == (6, 6)
    assert matrix[5, 0] == 65
    assert matrix[0, 0] == 70
    assert matrix.mask[0, 1]
    assert not matrix.mask[5].any()


def test_coinciding_lines_share_their_length(drawn):
    lines = drawn["cost"].axes[2].lines
    assert len(lines) == 3
    offsets = {line._unscaled_dash_pattern[0] for line in lines}
    assert len(offsets) == 3


@pytest.mark.parametrize(
    ("draw", "records", "suite"),
    [
        (phases_plot, [*run_records(method="acil"), *run_records(method="icarl")], "main"),
        (width_plot, run_records(suite="width"), "width"),
        (forgetting_plot, run_records(extra={"forgetting": None}), "main"),
        (memory_plot, run_records(), "memory"),
    ],
    ids=["one K", "one width", "no forgetting", "one point"],
)
def test_too_little_makes_no_plot(tmp_path, draw, records, suite):
    assert draw(compared(tmp_path, records, suite)) is None


def test_one_method_and_one_seed_have_neither_band_nor_error_bar(tmp_path):
    main = compared(tmp_path, run_records())
    with styled():
        assert not accuracy_plot(main).axes[0].collections
        assert not forgetting_plot(main).axes[0].collections
        # Nothing that spans so little is put on a logarithmic axis, where it would have no tick.
        assert {axes.get_yscale() for axes in cost_plot(main).axes} == {"linear"}


def test_legend_of_many_long_names_stays_inside(suites):
    with styled():
        figure, (panel,) = panels("title", suites["main"][0], 1, 4, 3)
        lines = {f"_{i} {LONG}": panel.plot([0, 1], [i, i], **line_style(i))[0] for i in range(20)}
        legend_below(figure, lines)
        figure.draw_without_rendering()
    box = figure.legends[0].get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1
    assert not box.overlaps(panel.get_tightbbox())
    assert panel.get_window_extent().height > 1.5 * figure.dpi
    assert len(figure.legends[0].get_texts()) == 20


def test_thirty_two_lines_all_look_different():
    assert len({tuple(line_style(i).values()) for i in range(32)}) == 32


@pytest.mark.parametrize("n", range(1, 20))
def test_grid_has_room_for_all_panels(n):
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
    assert [text.get_text() for text in legend.get_texts()] == ["acil", "finetune", "icarl", "lucir"]
    lines = [list(line.get_xdata()) for line in panel.lines]
    assert lines[0] == [4 * width * width for width in (1024, 2048, 4096)]
    assert lines[1] == [0, 1]  # keeps nothing: its level, across the panel
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
    table = memory_table(comparison)
    assert [row[1] for row in table.rows] == ["icarl", "acil"]
    assert [row[6] for row in table.rows] == [5_000, 9_000]
