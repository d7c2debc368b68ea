"""The history of a model file: numbers of each change, and the way back to the state after it."""

import json

import pytest

from acil import load, save
from acil.core.files import describe
from acil.errors import InputError, ModelFileError
from acil.growing import Gate, ModelFile
from acil.growing.history import MAX_CHANGES
from support.commands import acil
from support.modelfiles import header_of, rewrite


@pytest.fixture(scope="module")
def samples(kind, tmp_path_factory):
    return kind.write(tmp_path_factory.mktemp("history"), 4)


@pytest.fixture
def file(kind, tmp_path):
    return ModelFile(tmp_path / "m.acil", new=kind.new, backbone=kind.network())


def numbers(file):
    return [(e.number, e.action, e.change, e.touched, e.samples, e.classes) for e in file.history()]


def test_each_change_is_told_in_numbers_and_no_name_is_in_it(kind, samples, file):
    file.learn(samples)
    file.learn(samples)  # nothing new
    file.forget(kind.samples(samples / "red")[:1], "red")
    file.forget(samples / "blue", "blue")
    file.rename_classes({"red": "rouge"})
    file.merge_classes({"rouge": "warm", "white": "warm"})
    assert numbers(file) == [
        (1, "learn", 16, 4, 16, 4),
        (2, "forget", -1, 1, 15, 4),
        (3, "forget", -4, 1, 11, 3),
        (4, "rename", 0, 1, 11, 3),
        (5, "merge-classes", 0, 1, 11, 2),
    ]
    text = json.dumps(header_of(file.path)["history"])
    assert not any(word in text for word in ("rouge", "blue", "warm", ".png", "history0"))


def test_what_a_gate_has_measured_is_kept_for_good(kind, samples, file):
    file.learn(samples / "red", "red")
    file.gate = Gate(file.prepare(kind.write(samples.parent / "held", 4, ("red", "blue"))))
    file.learn(samples / "blue", "blue")
    file.gate = lambda before, after: {"seconds": 0.5, "by": "hand", "bad": float("nan")}
    file.learn(samples / "green", "green")
    first, second, third = (entry.measured for entry in file.history())
    assert first == {}
    assert second == {"samples": 8, "accuracy": 100, "before": 100, "after": 100}
    assert third == {"seconds": 0.5}
    file.undo()
    assert file.history()[-1].measured == second


def test_undo_goes_back_to_the_state_after_a_change(samples, file):
    contents = []
    for name in ("red", "blue", "green", "white"):
        file.learn(samples / name, name)
        contents.append(file.path.read_bytes())
    assert list(file.states().values()) == [1, 2, 3]
    with pytest.raises(InputError, match="after change 4"):
        file.undo(to=4)
    with pytest.raises(InputError, match=r"change 7 .*1, 2, 3\."):
        file.undo(to=7)
    assert file.path.read_bytes() == contents[3]
    file.undo(to=2)
    assert file.path.read_bytes() == contents[1]
    assert list(file.states().values()) == [1]  # later states are gone
    file.undo()
    assert file.path.read_bytes() == contents[0]


def test_going_back_that_is_killed_half_way_leaves_no_later_state(samples, file):
    for name in ("red", "blue", "green", "white"):
        file.learn(samples / name, name)
    second = list(file.states())[1]
    file.path.unlink()  # what undo does before it removes this state and those after it
    file.path.hardlink_to(second)
    assert list(file.states().values()) == [1]
    file.learn(samples / "white", "white")
    assert list(file.states().values()) == [1, 2]
    file.undo(to=1)
    assert (list(file.read().counts_), file.undo_left) == (["red"], 0)


def test_history_goes_with_copies_and_not_with_files_for_prediction(kind, samples, file, tmp_path):
    file.learn(samples)
    (tmp_path / "copy.acil").write_bytes(file.path.read_bytes())
    assert len(ModelFile(tmp_path / "copy.acil").history()) == 1
    file.read().save(tmp_path / "small.acil", inference=True)
    assert describe(tmp_path / "small.acil")["history"] == []
    private = tmp_path / "p.acil"
    bounded = ModelFile(private, new=lambda: kind.new(clip_norm=1.0), backbone=kind.network())
    bounded.learn(samples)
    save(bounded.release(2.0, 1e-6), tmp_path / "release.acil")
    assert describe(tmp_path / "release.acil")["history"] == []
    assert [entry.action for entry in bounded.history()] == ["learn", "release"]


def test_history_is_bounded_and_its_numbers_go_on(samples, file):
    file.learn(samples)
    entry = file.history()[0].to_dict()
    rewrite(file.path, {"history": [{**entry, "number": n} for n in range(1, MAX_CHANGES + 1)]})
    file.rename_classes({"red": "rouge"})
    found = [entry.number for entry in file.history()]
    assert found == list(range(2, MAX_CHANGES + 2))


@pytest.mark.parametrize(
    "wrong",
    [
        {"number": 0},
        {"time": "yesterday"},
        {"action": "\x1b[2J"},
        {"samples": -1},
        {"measured": {"a": "b"}},
    ],
)
def test_a_history_that_was_edited_is_refused(samples, file, wrong):
    file.learn(samples)
    rewrite(file.path, {"history": [{**file.history()[0].to_dict(), **wrong}]})
    with pytest.raises(ModelFileError, match=f"history.0..{next(iter(wrong))}"):
        file.history()


def test_command_shows_what_is_kept_and_goes_back(tmp_path):
    rows = tmp_path / "rows.csv"
    rows.write_text("a,b,label\n0,0,x\n0,1,x\n4,0,y\n4,1,y\n")
    more = tmp_path / "more.csv"
    more.write_text("a,b,label\n9,9,z\n")
    model = tmp_path / "m.acil"
    acil("learn", rows, "--model", model)
    acil("learn", more, "--model", model, "--gate", rows)
    acil("rename", model, "z", "w")
    head, *lines = acil("history", model).stdout.strip().split("\n")
    assert "held-out" in head
    assert lines[0].split()[3:] == ["learn", "+4", "4", "2", "kept"]
    assert lines[1].split()[3:] == ["learn", "+1", "5", "3", "100.00", "%", "of", "4", "kept"]
    assert lines[2].split()[3:] == ["rename", "5", "3", "now"]
    found = json.loads(acil("history", model, "--json").stdout)
    assert [(c["number"], c["kept"]) for c in found["changes"]] == [(1, True), (2, True), (3, False)]
    assert found["undo_left"] == 2
    assert "is not kept" in acil("undo", model, "--to", 9, code=1).stderr
    assert "--remove" in acil("undo", model, "--to", 1, "--remove", code=2).stderr
    assert "is as it was after change 1" in acil("undo", model, "--to", 1).stdout
    assert len(json.loads(acil("history", model, "--json").stdout)["changes"]) == 1
    clf = load(model)
    save(clf.rename_classes({"x": "y"}), model)
    assert "by something that does not record it" in acil("history", model).stderr
    header = {k: v for k, v in header_of(model).items() if k != "history"}
    rewrite(model, text=json.dumps(header))
    assert "no change has been recorded" in acil("history", model).stdout
