"""One name for one thing: class orders and networks in settings, records, checkpoints and reports."""

import json
import shutil
import tomllib

import pytest

from acil.bench.config import make_config
from acil.bench.records import Records, finished, key
from acil.bench.report.collect import collect
from acil.bench.runner import run
from acil.encoders.images.backbones import load_backbone
from acil.errors import InputError
from support.running import records, timeless

SHORT = {"seeds": "0", "phases": "1", "recipe.training.epochs": "1"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run on digits with an order that has several spellings, and its network."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    run(make_config({**SHORT, "order": "7"}), folder)
    (network,) = folder.glob("checkpoint/base-*/backbone.safetensors")
    return folder, network


def test_every_spelling_of_an_order_is_one_order(trained, tmp_path):
    folder, network = trained
    assert {r["order"] for r in records(folder) if "order" in r} == {"seed:7"}
    assert tomllib.loads((folder / "config.toml").read_text())["order"] == "seed:7"
    assert load_backbone(network)[1]["order"] == "seed:7"
    assert make_config({"order": "seed:1993"}).order == "seed1993"
    assert make_config({"order": 7}) == make_config({"order": " seed:7"})
    (comparison,) = collect([folder]).suites["main"]
    assert comparison.order == "seed:7"


@pytest.mark.parametrize("spelling", ["7", "seed:7", "seed:007"])
def test_network_and_run_of_one_order_are_found_again_under_another_spelling(
    trained, tmp_path, spelling
):
    folder, network = trained
    again = shutil.copytree(folder, tmp_path / "again")
    run(make_config({**SHORT, "order": spelling}), again, resume=True)
    assert timeless(again) == timeless(folder)
    run(make_config({**SHORT, "order": spelling, "backbone": str(network)}), tmp_path / "given")
    assert len(records(tmp_path / "given", "summary")) == 1


def test_records_and_settings_of_earlier_versions_are_read_under_the_canonical_order(trained, tmp_path):
    folder, _ = trained
    old = shutil.copytree(folder, tmp_path / "old")
    for name in ("records.jsonl", "config.toml"):
        text = (old / name).read_text()
        assert '"seed:7"' in text
        (old / name).write_text(text.replace('"seed:7"', '"7"'))
    assert finished(Records(old / "records.jsonl").read()) == finished(records(folder))
    run(make_config({**SHORT, "order": "seed:7"}), old, resume=True)
    assert len(records(old, "summary")) == 1


def test_order_that_nobody_knows_keeps_its_name(tmp_path):
    from support.synthetic_records import summary_record

    file = tmp_path / "records.jsonl"
    file.write_text(json.dumps(summary_record(order="by-size")) + "\n")
    (record,) = Records(file).read()
    assert record["order"] == "by-size"
    assert "by-size" in key(record)


def test_network_goes_by_its_file_and_fingerprint(trained, tmp_path, monkeypatch):
    _, network = trained
    config = {**SHORT, "order": "7", "backbone": str(network)}
    run(make_config(config), tmp_path / "run")
    (summary,) = records(tmp_path / "run", "summary")
    fingerprint = load_backbone(network)[1]["fingerprint"]
    assert summary["settings"]["backbone"] == f"backbone.safetensors@{fingerprint[:12]}"
    assert str(network.parent) not in (tmp_path / "run" / "records.jsonl").read_text()

    before = timeless(tmp_path / "run")
    monkeypatch.chdir(network.parent)
    run(make_config({**config, "backbone": "./backbone.safetensors"}), tmp_path / "run", resume=True)
    (tmp_path / "link").symlink_to(network)
    run(make_config({**config, "backbone": str(tmp_path / "link")}), tmp_path / "run", resume=True)
    assert timeless(tmp_path / "run") == before


def test_another_network_under_the_same_name_is_another_run(trained, tmp_path):
    _, network = trained
    other = tmp_path / "other" / "backbone.safetensors"
    run(make_config({**SHORT, "order": "7", "seeds": "3"}), tmp_path / "trained")
    other.parent.mkdir()
    shutil.copy(next((tmp_path / "trained").glob("checkpoint/base-*/backbone.safetensors")), other)
    config = {**SHORT, "order": "7", "backbone": str(network)}
    run(make_config(config), tmp_path / "run")
    with pytest.raises(InputError, match=r"'backbone\.safetensors@"):
        run(make_config({**config, "backbone": str(other)}), tmp_path / "run", resume=True)
    run(make_config({**config, "backbone": str(other)}), tmp_path / "beside")
    (comparison,) = collect([tmp_path / "run", tmp_path / "beside"]).suites["main"]
    assert len(comparison.rows) == 2
