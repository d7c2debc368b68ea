"""Methods on frozen features through the whole benchmark, on digits."""

import json

import pytest
from typer.testing import CliRunner

from acil.bench.config import make_config
from acil.bench.methods import available, resolve
from acil.bench.records import Records
from acil.bench.runner import run
from acil.cli import app
from acil.encoders.images.backbones import load_backbone
from support.frozen_phases import FROZEN, GROUPING_FREE

#: Bytes of the small network's parameters, which every method needs to predict.
NETWORK = 18_912 * 4
METHODS = ",".join(FROZEN)


@pytest.fixture(scope="module")
def first_run(tmp_path_factory):
    """All methods by the command, on one network that is trained for a few epochs."""
    folder = tmp_path_factory.mktemp("frozen") / "run"
    arguments = ["bench", "run", "--dataset", "digits", "--method", METHODS, "--phases", "1,5"]
    arguments += ["--seeds", "0", "--set", "recipe.training.epochs=6", "--expansion-size", "200"]
    result = CliRunner().invoke(app, [*arguments, "--out", str(folder), "--json"])
    assert result.exit_code == 0, result.output
    assert len(json.loads(result.stdout)) == 2 * len(FROZEN)
    return folder


@pytest.fixture(scope="module")
def backbone(first_run):
    (found,) = (first_run / "checkpoint").glob("base-*/backbone.safetensors")
    return found


def records(folder, kind=None):
    found = Records(folder / "records.jsonl").read()
    return [record for record in found if kind in (None, record["kind"])]


def config(backbone, **changes):
    values = {"dataset": "digits", "methods": METHODS, "seeds": "0", "expansion_size": 200}
    return make_config({**values, "backbone": str(backbone), **changes})


@pytest.mark.parametrize("name", FROZEN)
@pytest.mark.parametrize("k", [1, 5])
def test_command_runs_every_method_to_a_sensible_accuracy(first_run, name, k):
    rows = [r for r in records(first_run, "phase") if (r["method"], r["phases"]) == (name, k)]
    assert [row["classes_seen"] for row in rows] == ([5, 10] if k == 1 else [5, 6, 7, 8, 9, 10])
    assert rows[-1]["accuracy"] > {"ncm": 60, "gkeal": 80}.get(name, 85)
    assert rows[0]["accuracy"] > 90
    assert all((row["memory"]["samples"] > 0) == (name == "gkeal") for row in rows)
    assert all(row["memory"]["weights"] >= NETWORK for row in rows)
    assert rows[-1]["memory"]["statistics"] > rows[0]["memory"]["statistics"] > 0


def test_grouping_free_methods_have_one_curve_for_all_numbers_of_phases(backbone, tmp_path):
    assert {name for name in available() if resolve(name).grouping_free} == {"acil", *GROUPING_FREE}
    curves = {}
    for k in (1, 5):
        run(config(backbone, methods=",".join(GROUPING_FREE), phases=k), tmp_path / str(k))
        for row in records(tmp_path / str(k), "phase"):
            curves.setdefault(row["method"], {}).setdefault(k, {})[row["classes_seen"]] = row["accuracy"]
    for curve in curves.values():
        assert curve[1] == {seen: curve[5][seen] for seen in (5, 10)}
    assert len(curves) == len(GROUPING_FREE)


def test_features_of_several_depths_reach_every_method(backbone, tmp_path):
    changes = {"recipe.features.taps": "stage1,stage2", "recipe.features.grid": "2"}
    changes |= {"recipe.features.mirror": "true", "recipe.features.length": "8.0"}
    run(config(backbone, phases=1, **changes), tmp_path / "run")
    rows = {r["method"]: r for r in records(tmp_path / "run", "summary")}
    width = 4 * (32 + 64)
    network = sum(tensor.nbytes for tensor in load_backbone(backbone)[0].state_dict().values())
    counted = {"samples": 0, "statistics": 10 * (width + 1) * 8, "weights": network}
    assert rows["ncm"]["memory"] == counted
    assert rows["fecam"]["memory"]["statistics"] == 10 * (width * (width + 1) // 2 + width + 1) * 8
    assert min(row["last_accuracy"] for row in rows.values()) > 60
