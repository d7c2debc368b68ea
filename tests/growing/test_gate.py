"""A gate: what makes a model worse on held-out samples is refused, and changes nothing."""

import dataclasses
import json
import logging

import pytest

from acil import ImageClassifier
from acil.errors import GateError, InputError
from acil.growing import Gate, ModelFile
from acil.growing.history import kept_states
from support.commands import acil
from support.pictures import draw, network


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gate")
    draw(folder / "train", 4)
    draw(folder / "held", 5, seed=1)
    draw(folder / "swapped", 9, names=("red", "blue"), seed=2)
    swapped = folder / "swapped"
    for old, new in (("red", "kept"), ("blue", "red"), ("kept", "blue")):
        (swapped / old).rename(swapped / new)
    return folder


@pytest.fixture
def file(pictures, tmp_path):
    made = ImageClassifier(network())
    for name in ("red", "blue"):
        made.learn(pictures / "train" / name, name)
    made.save(tmp_path / "m.acil")
    return ModelFile(tmp_path / "m.acil", backbone=network())


@pytest.fixture
def gate(pictures, file):
    return Gate(file.prepare(pictures / "held"))


def test_a_change_for_the_worse_is_refused_with_a_table_and_nothing_is_changed(pictures, file, gate):
    file.learn(pictures / "train" / "green", "green")
    before, states = file.path.read_bytes(), kept_states(file.path)
    file.gate = gate
    with pytest.raises(GateError, match="refused") as refused:
        file.learn(pictures / "swapped")
    assert (file.path.read_bytes(), kept_states(file.path)) == (before, states)
    found = refused.value.comparison
    assert found["samples"] == 15
    assert found["before"] == 100
    assert found["after"] < 99.5
    assert found["per_class"].keys() == {"blue", "green", "red"}
    assert sum(part["samples"] for part in found["per_class"].values()) == 15
    first, head, all_, *classes = str(refused.value).split("\n")
    assert f"from 100.00 to {found['after']:.2f} %" in first
    assert head.split() == ["class", "samples", "before", "after"]
    assert all_.split() == ["all", "15", "100.0", "%", f"{found['after']:.1f}", "%"]
    # Only those that change, that which loses most first
    changed = {n: p for n, p in found["per_class"].items() if p["before"] != p["after"]}
    assert [line.split()[0] for line in classes] == sorted(changed, key=lambda n: changed[n]["after"])


def test_a_drop_as_large_as_allowed_passes(pictures, file, gate):
    file.gate = gate
    with pytest.raises(GateError) as refused:
        file.learn(pictures / "swapped")
    lost = refused.value.comparison["before"] - refused.value.comparison["after"]
    file.gate = Gate(gate.held_out, max_drop=lost - 0.01)
    with pytest.raises(GateError):
        file.learn(pictures / "swapped")
    file.gate = Gate(gate.held_out, max_drop=lost)
    assert file.learn(pictures / "swapped").measured["after"] == pytest.approx(100 - lost)


def test_new_classes_and_those_forgotten_as_a_whole_do_not_count_as_lost(pictures, file, gate):
    file.gate = gate
    learnt = file.learn(pictures / "train" / "green", "green").measured
    assert learnt == {"samples": 15, "accuracy": 100, "before": 100, "after": 100}
    forgotten = file.forget(pictures / "train" / "red", "red").measured
    assert forgotten == {"samples": 10, "accuracy": 100, "before": 100, "after": 100}


def test_the_first_change_is_measured_and_there_is_nothing_to_compare_with(pictures, tmp_path):
    file = ModelFile(tmp_path / "new.acil", new=lambda: ImageClassifier(network()), backbone=network())
    file.gate = Gate(file.prepare(pictures / "held"))
    measured = file.learn(pictures / "train" / "green", "green").measured
    assert measured == {"samples": 5, "accuracy": 100}


def test_samples_of_none_of_the_classes_guard_nothing(pictures, file):
    file.gate = Gate(file.prepare(pictures / "held" / "green", "green"))
    content = file.path.read_bytes()
    with pytest.raises(InputError, match="None of the held-out"):
        file.learn(pictures / "train" / "green", "green")
    assert file.path.read_bytes() == content


def test_held_out_samples_that_are_learnt_are_told(pictures, file, gate, caplog):
    file.gate = gate
    with caplog.at_level(logging.WARNING):
        file.learn(pictures / "train" / "green", "green")
    assert "held-out" not in caplog.text
    with caplog.at_level(logging.WARNING):
        file.learn(sorted((pictures / "held" / "red").iterdir())[:2], "red")
    assert "2 of the held-out samples have been learnt" in caplog.text


@pytest.mark.parametrize("drop", [-0.1, 101, float("nan")])
def test_bad_settings_are_told(gate, drop):
    with pytest.raises(InputError, match="max_drop"):
        Gate(gate.held_out, drop)
    unlabelled = dataclasses.replace(gate.held_out, labels=gate.held_out.labels.copy())
    unlabelled.labels[0] = ""
    with pytest.raises(InputError, match="no labels"):
        Gate(unlabelled)


def table(path, rows):
    """Write rows of two features and a label."""
    path.write_text("\n".join(["a,b,label", *(",".join(map(str, row)) for row in rows)]))
    return path


def test_commands_refuse_with_an_exit_code_of_their_own(tmp_path):
    """Classes are numbers here, which features may have."""
    train = table(tmp_path / "train.csv", [(x + i / 10, i, x) for x in (1, 5) for i in range(5)])
    held = table(tmp_path / "held.csv", [(x + i / 7, i / 2, x) for x in (1, 5) for i in range(5)])
    swapped = table(tmp_path / "swapped.csv", [(6 - x, i / 3, x) for x in (1, 5) for i in range(20)])
    model, other, both = (tmp_path / name for name in ("m.acil", "other.acil", "both.acil"))
    acil("learn", train, "--model", model)
    acil("learn", swapped, "--model", other)
    content = model.read_bytes()
    change = ["learn", swapped, "--model", model]
    done = acil(*change, "--gate", held, code=3)
    assert "error: This change was refused" in done.stderr
    assert model.read_bytes() == content
    assert "refused" in acil("merge", model, other, "-o", both, "--gate", held, code=3).stderr
    assert not both.exists()
    found = acil("merge", model, other, "-o", both, "--gate", held, "--max-drop", 100, "--json")
    assert json.loads(found.stdout)["held_out"]["before"] == 100
    one = table(tmp_path / "one.csv", [(1, 0, 1)])
    done = acil("forget", model, one, "--gate", held)
    assert (
        "accuracy 100.00 % of 10 held-out samples; of the classes known before 100.00 %" in done.stderr
    )
    assert "--gate" in acil(*change, "--max-drop", 1, code=2).stderr
    assert "Check the path of --gate" in acil(*change, "--gate", tmp_path / "none", code=1).stderr
