"""The benchmarks of the head's limits run, in small, and report what they promise."""

import json
import runpy
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def run(tmp_path):
    """Run a benchmark as a script's main, and return what it wrote."""

    def call(name, *arguments):
        out = tmp_path / f"{name}.json"
        main = runpy.run_path(str(BENCHMARKS / f"{name}.py"))["main"]
        result = main([*arguments, "--out", str(out)])
        assert json.loads(out.read_text()) == json.loads(json.dumps(result))
        return result

    return call


def test_limit_compares_a_run_with_bare_calls_and_the_recursion(run):
    small = ("--width", "128", "--scale", "0.02", "--phases", "2")
    result = run("limit", *small, "--stages", "--blocks", "32,64", "--published", "all")
    assert result["settings"] == {"width": 128, "gamma": 19.2, "rows": 540, "phases": 2}
    assert len(result["phases"]) == 3
    assert result["ratio_to_bare"] == pytest.approx(result["head_seconds"] / result["bare_seconds"])
    assert set(result["published"]["batches"]) == {256, 1024, 4096}
    assert set(result["solution_by_block"]) == {"library", "32", "64"}
    assert {"gram", "of that, the factor", "solve", "expansion"} <= set(result["stages"])
    assert result["stages"]["gram"] < result["stages_total"]


@pytest.mark.parametrize("preset", ["imagenet", "wide"])
def test_large_presets_run_in_small(run, preset):
    result = run("limit", "--preset", preset, "--width", "64", "--scale", "0.005", "--phases", "1")
    assert result["peak_rss_gib"] > 0
    assert ("ratio_to_bare" in result) == (preset != "wide")
    assert "published" not in result


def test_limit_takes_the_median_of_several_runs(run):
    small = ("--width", "64", "--scale", "0.02", "--phases", "1", "--published", "none")
    result = run("limit", *small, "--rounds", "3")
    assert result["rounds"] == sorted(result["rounds"])
    assert result["head_seconds"] == result["rounds"][1]


def test_stream_compares_drops_with_the_recursion(run):
    result = run("stream", "--widths", "32", "--drops", "5")
    assert [row["samples"] for row in result["rows"]] == [1, 10, 100]
    assert all(row["difference_to_one_solution"] < 1e-10 for row in result["rows"])
    assert all(row["microseconds_a_drop"] > 0 for row in result["rows"])
