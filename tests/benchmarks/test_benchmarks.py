"""The benchmark suite runs, and its pages show what its files hold."""

import doctest
import importlib
import json
import os
import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from acil.bench.training.recipes import recipe

ROOT = Path(__file__).parents[2]


def run(*arguments):
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", *map(str, arguments)],
        cwd=ROOT,
        env={**environment, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_every_measurement_runs_in_small_and_fills_the_page(tmp_path):
    from benchmarks.suite import MEASUREMENTS, main

    page, out = tmp_path / "performance.md", tmp_path / "figures.json"
    shutil.copy(ROOT / "docs" / "performance.md", page)
    main(["--quick", "--out", str(out), "--page", str(page)])
    figures = json.loads(out.read_text())
    assert figures.keys() == MEASUREMENTS.keys()
    text = page.read_text()
    for name, entry in figures.items():
        assert entry["rows"], name
        assert entry["environment"]["torch"]
        assert all("ratio" in row for row in entry["rows"]), name
        assert f"<!-- generated: {name} -->" in text
    assert text.count("(quick sizes)") == len(figures)
    assert (tmp_path / "performance" / "growth.png").read_bytes().startswith(b"\x89PNG")
    # Ridge of scikit-learn solves the same equations.
    (difference,) = [r["difference"] for r in figures["refits"]["rows"] if "Ridge on" in r["learner"]]
    assert difference < 1e-9
    again = tmp_path / "again.md"
    shutil.copy(ROOT / "docs" / "performance.md", again)
    main(["--from", str(out), "--page", str(again)])
    assert again.read_text() == text


def test_some_measurements_leave_the_others_in_the_file(tmp_path, capsys):
    from benchmarks.suite import main
    from benchmarks.timing import environment

    out = tmp_path / "figures.json"
    kept = {"environment": environment(), "quick": True, "rows": [], "seconds": 0.5}
    out.write_text(json.dumps({"heads": kept}))
    main(["--quick", "--only", "ceilings", "--out", str(out)])
    figures = json.loads(out.read_text())
    assert figures["heads"] == kept
    assert len(figures["ceilings"]["rows"]) == 10
    with pytest.raises(SystemExit, match="2"):
        main(["--only", "speed", "--out", str(out)])
    assert "choose among" in capsys.readouterr().err


def test_the_page_shows_the_figures_of_its_file(tmp_path):
    from benchmarks.page import fill
    from benchmarks.suite import parts

    source, page = ROOT / "docs" / "performance.md", tmp_path / "page.md"
    shutil.copy(source, page)
    figures = json.loads((ROOT / "docs" / "performance" / "benchmarks.json").read_text())
    assert set(fill(page, parts(figures))) == set(figures)
    assert page.read_text() == source.read_text()


def test_the_page_on_scale_shows_the_figures_of_its_files(tmp_path, capsys):
    from benchmarks.cost import TOLERANCE, main

    source, page = ROOT / "docs" / "scale.md", tmp_path / "page.md"
    shutil.copy(source, page)
    files = sorted((ROOT / "docs" / "performance").glob("cost-*.json"))
    assert files
    for path in files:
        figures = json.loads(path.read_text())
        off = [row for row in figures["checks"] if abs(row["ratio"] - 1) > TOLERANCE]
        # What is off says too much, and the page tells it.
        told = [f"the formula says {100 * (row['ratio'] - 1):.0f} % too much" for row in off]
        assert all(row["ratio"] > 1 for row in off)
        assert all(words in source.read_text() for words in told)
        with pytest.raises(SystemExit) if off else nullcontext():
            main(["--from", str(path), "--page", str(page)])
    capsys.readouterr()
    assert page.read_text() == source.read_text()


def test_a_model_that_does_not_hold_is_an_error(tmp_path, capsys):
    from benchmarks.cost import main

    figures = json.loads((ROOT / "docs" / "performance" / "cost-cpu.json").read_text())
    figures["checks"][0]["ratio"] = 1.3
    path = tmp_path / "cost.json"
    path.write_text(json.dumps(figures))
    with pytest.raises(SystemExit, match=r"1 of .* predictions"):
        main(["--from", str(path)])


def test_the_page_on_scale_says_what_its_plans_leave_out_and_which_are_old():
    from benchmarks.cost import TASKS

    page = " ".join((ROOT / "docs" / "scale.md").read_text().split())
    rows = TASKS["imagenet"].rows
    assert f"{recipe('imagenet').training.epochs * rows / 2 / 1e6:.1f} million network inputs" in page
    figures = json.loads((ROOT / "docs" / "performance" / "cost-cuda.json").read_text())
    # The core was rewritten on 16 November 2026.
    assert (figures["environment"]["date"] < "2026-11-16") == ("older than the present core" in page)


def test_memory_of_runs_on_image_files_does_not_follow_their_number():
    page = " ".join((ROOT / "docs" / "imagenet.md").read_text().split())
    figures = json.loads((ROOT / "docs" / "performance" / "footprint.json").read_text())
    few, many = figures["rows"]
    assert many["images"] == 10 * few["images"] == 50_000
    assert many["pss"] - few["pss"] < 50e6
    told = [f"{row['pss'] / 2**20:.0f}" for row in (few, many)]
    assert f"at most {told[0]} MiB with 5,000 images and {told[1]} with 50,000" in page


def test_more_processes_share_out_rows_but_not_solving():
    from benchmarks.costmodel import TERMS, Assumptions, CostModel, Task, plan

    model = CostModel({kind: dict.fromkeys(terms, 1e-09) for kind, terms in TERMS.items()})
    task = Task(rows=100_000, classes=100, phases=5, f=64, d=512)
    one, four = (plan(model, task, count, 1e3, Assumptions()) for count in (1, 4))
    assert one["network"] == 0
    assert one["gloo"] is None
    assert four["features"] == pytest.approx(one["features"] / 4)
    assert four["sums"] == pytest.approx(one["sums"] / 4, rel=1e-3)
    assert four["weights"] == one["weights"]
    # Six reductions, of which each process sends and receives every byte 2 · 3 / 4 times
    size = 8 * 512 * 513 / 2
    assert four["network"] == pytest.approx(1.5 * 6 * size / 25e9, rel=0.2)


def test_predictions_for_sizes_that_were_not_measured():
    from benchmarks.costmodel import TERMS, CostModel, Size, fitted, phase_sizes

    truth = CostModel(
        {kind: {t: 10.0 ** -(3 + 2 * i) for i, t in enumerate(terms)} for kind, terms in TERMS.items()}
    )
    widths = (50, 100, 200, 300)
    sizes = [Size(n, f, d, c) for n in (100, 900) for f in (8, 32) for d in widths for c in (5, 90)]
    found = {
        kind: fitted(kind, sizes, [truth.cost(kind, s) for s in sizes]) for kind in ("learn", "solve")
    }
    found["start"] = fitted("start", sizes, [truth.cost("start", s) for s in sizes])
    steps = phase_sizes(rows=5000, classes=40, phases=4, f=64, d=1000)
    assert sum(size.n for size in steps) == pytest.approx(5000)
    assert steps[-1].c == 40
    assert CostModel(found).run(steps) == pytest.approx(truth.run(steps), rel=1e-6)


def test_a_program_is_run_when_it_is_named(tmp_path, monkeypatch, capsys):
    from benchmarks import scripts, suite

    program = "import json, sys\njson.dump({'speed': {'fast': 2.5}}, open(sys.argv[2], 'w'))\n"
    (tmp_path / "limit.py").write_text(program)
    monkeypatch.setattr(scripts, "_FOLDER", tmp_path)
    assert scripts.available() == ["limit"]
    entry = suite.Measurement(lambda _: scripts.run("limit"), {"value": ("value", "auto")})
    monkeypatch.setitem(suite.SCRIPTS, "limit", entry)
    suite.main(["--only", "limit", "--out", str(tmp_path / "figures.json")])
    rows = json.loads((tmp_path / "figures.json").read_text())["limit"]["rows"]
    assert rows == [{"figure": "speed, fast", "value": 2.5}]
    assert "| 2.5 |" in capsys.readouterr().out


@pytest.mark.slow
def test_the_cost_model_is_measured_fitted_and_written(tmp_path):
    from benchmarks.costmodel import TERMS

    out = tmp_path / "cost.json"
    done = run("benchmarks.cost", "--quick", "--out", out)
    assert done.returncode == 0, done.stderr
    figures = json.loads(out.read_text())
    assert set(figures["coefficients"]) == set(TERMS)
    (size,) = [row["ratio"] for row in figures["checks"] if row["what"] == "model file, GB"]
    assert size == pytest.approx(1, rel=0.02)


@pytest.mark.parametrize("name", ["costmodel", "costpage", "growth", "page", "scripts"])
def test_docstring_examples_of_benchmarks_run(name):
    result = doctest.testmod(importlib.import_module(f"benchmarks.{name}"))
    assert result.attempted > 0
    assert result.failed == 0
