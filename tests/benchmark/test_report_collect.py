"""Records become rows: averaged over seeds, apart where they differ, nothing hidden."""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_records import ENVIRONMENT, phase_record, run_records, summary_record, write_run

from acil.benchmark.report.collect import collect
from acil.benchmark.report.rows import stat
from acil.errors import InputError


@given(st.lists(st.floats(0, 100), min_size=2, max_size=9))
def test_mean_and_deviation_are_those_of_the_standard_library(values):
    found = stat(values)
    assert found.mean == pytest.approx(statistics.fmean(values), abs=1e-9)
    assert found.std == pytest.approx(statistics.stdev(values), abs=1e-9)
    assert found.n == len(values)


def test_one_value_has_no_deviation():
    assert stat([5.0]).std is None
    assert stat([None]) is None
    assert stat([None, 3.0]).n == 1


def test_seeds_are_averaged_and_settings_kept_apart(tmp_path):
    records = [
        record
        for gamma in (0.1, 0.01)
        for seed in (0, 1)
        for record in run_records(
            seed=seed, average=60.0 + seed, settings={"gamma": gamma, "dtype": "x"}
        )
    ]
    (comparison,) = collect([write_run(tmp_path, records)]).suites["main"]
    assert [row.label for row in comparison.rows] == ["acil (γ = 0.01)", "acil (γ = 0.1)"]
    cell = comparison.rows[0].cells[5]
    assert cell.over_seeds("average_accuracy").mean == 60.5
    assert cell.over_seeds("average_accuracy").std == pytest.approx(math.sqrt(0.5))
    assert (comparison.base_classes, comparison.classes) == (50, 100)


def test_curve_is_the_mean_of_the_phases(tmp_path):
    records = run_records(seed=0) + [
        {**record, "accuracy": 60.0} if record["kind"] == "phase" else record
        for record in run_records(seed=1)
    ]
    (comparison,) = collect([write_run(tmp_path, records)]).suites["main"]
    curve = comparison.rows[0].cells[5].curve("accuracy")
    assert [(phase, seen) for phase, seen, _ in curve] == [(k, 50 + 10 * k) for k in range(6)]
    assert [mean.mean for _, _, mean in curve] == [65.0, 64.5, 64.0, 63.5, 63.0, 62.5]


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
    }


def test_last_of_two_directories_counts_and_is_counted(tmp_path):
    first = write_run(tmp_path / "a", run_records(average=10.0))
    second = write_run(tmp_path / "b", run_records(average=20.0))
    found = collect([first, second])
    assert found.replaced == 1
    assert found.suites["main"][0].rows[0].cells[5].over_seeds("average_accuracy").mean == 20.0


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


def test_run_without_base_classes_is_not_taken_for_the_papers(tmp_path):
    records = run_records(settings={"base": 0})
    (comparison,) = collect([write_run(tmp_path, records)]).suites["main"]
    assert (comparison.base_classes, comparison.classes) == (0, 100)
    assert not comparison.is_published_protocol


def test_summary_without_phases_still_makes_a_row(tmp_path):
    (comparison,) = collect([write_run(tmp_path, [summary_record()])]).suites["main"]
    cell = comparison.rows[0].cells[5]
    assert cell.over_seeds("average_accuracy").mean == 66.0
    assert (cell.kept("samples"), cell.peak(), cell.seconds(lambda phase: True)) == (None, None, None)


def test_directory_without_records_is_a_clear_error(tmp_path):
    with pytest.raises(InputError, match="There are no records in"):
        collect([tmp_path])
