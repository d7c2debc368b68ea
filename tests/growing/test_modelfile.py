"""The one way to change a model file: whole or not at all, by the gate's leave, with a receipt."""

import json
import threading

import numpy as np
import pytest

from acil import load
from acil.core.files import describe
from acil.errors import InputError, ModelFileError
from acil.growing import ModelFile
from acil.growing.history import kept_states
from acil.growing.modelfile import signature_of


@pytest.fixture(scope="module")
def samples(kind, tmp_path_factory):
    return kind.write(tmp_path_factory.mktemp("samples"), 4)


@pytest.fixture
def path(kind, samples, tmp_path):
    made = kind.new()
    for name in ("red", "blue"):
        made.learn(samples / name, name)
    made.save(tmp_path / "m.acil")
    return tmp_path / "m.acil"


@pytest.fixture
def file(kind, path):
    return ModelFile(path, backbone=kind.network())


def coefficients(path):
    return load(path).coef_


def test_the_first_change_makes_the_file_and_the_next_goes_on_from_it(kind, samples, tmp_path):
    path = tmp_path / "new.acil"
    file = ModelFile(path, new=kind.new, backbone=kind.network())
    first = file.learn(samples / "red", "red")
    assert (first.before, first.earlier, first.report.counts) == (None, None, {"red": 4})
    second = file.learn(samples / "blue", "blue")
    assert second.before.totals == {"red": 4}
    assert second.after.totals == file.read().counts_ == {"blue": 4, "red": 4}
    assert second.earlier == first.signature != second.signature
    assert file.undo_left == 1
    with pytest.raises(InputError, match="no such file"):
        ModelFile(tmp_path / "none.acil").learn(file.prepare(samples / "red", "red"))


def test_a_change_of_nothing_writes_nothing(kind, samples, file):
    before = signature_of(file.path)  # without the time of the last read
    change = file.learn(samples / "red", "red")
    assert (change.report.counts, len(change.report.repeated)) == ({}, 4)
    assert change.after is change.before
    assert (signature_of(file.path), file.undo_left) == (before, 0)


def test_a_gate_sees_both_states_and_may_refuse(kind, samples, file):
    seen = []

    def gate(before, after):
        seen.append((before.totals, after.totals))
        if len(after.totals) > 2:
            raise InputError("too many classes")
        return {"classes": len(after.totals)}

    file = ModelFile(file.path, backbone=kind.network(), gate=gate)
    content = file.path.read_bytes()
    with pytest.raises(InputError, match="too many"):
        file.learn(samples / "green", "green")
    assert file.path.read_bytes() == content
    assert kept_states(file.path) == []
    assert seen == [({"blue": 4, "red": 4}, {"blue": 4, "green": 4, "red": 4})]
    change = file.forget(kind.samples(samples / "red")[:1], "red")
    assert change.measured == {"classes": 2}


def test_undo_brings_back_the_state_unless_that_is_refused(kind, samples, file):
    before = file.path.read_bytes()
    file.learn(samples / "green", "green")
    after = file.path.read_bytes()

    def refuse(state):
        assert state.read_bytes() == before
        raise InputError("not that one")

    with pytest.raises(InputError, match="not that"):
        file.undo(refuse)
    assert file.path.read_bytes() == after
    file.undo()
    assert file.path.read_bytes() == before
    with pytest.raises(InputError, match="nothing"):
        file.undo()


def test_forgetting_leaves_a_receipt_whoever_forgets(kind, samples, file):
    one = kind.samples(samples / "red")[:1]
    place, receipt = file.forget(one, "red").receipt
    assert place.name == "m.acil.receipts.jsonl"
    assert json.loads(place.read_text()) == receipt
    assert (receipt["forgotten_samples"], receipt["forgotten_classes"]) == (1, 1)
    assert file.learn(one, "red").receipt is None
    place.unlink()
    place.mkdir()
    content = file.path.read_bytes()
    with pytest.raises(ModelFileError, match="receipts"):
        file.forget(one, "red")
    assert file.path.read_bytes() == content


def test_without_undo_no_earlier_state_stays(kind, samples, file):
    file.learn(samples / "green", "green")
    assert file.undo_left == 1
    ModelFile(file.path, backbone=kind.network(), undo=False).learn(samples / "white", "white")
    assert file.undo_left == 0


def test_changes_by_many_threads_are_all_in_the_file(kind, samples, path):
    """Each reads what the others have saved, so the model is that of all samples at once."""
    names = ["green", "white"]
    prepare = ModelFile(path, backbone=kind.network()).prepare
    jobs = [prepare([one], name) for name in names for one in kind.samples(samples / name)]

    def work(job):
        ModelFile(path, backbone=kind.network()).learn(job)

    threads = [threading.Thread(target=work, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    joint = kind.new()
    joint.learn(samples)
    np.testing.assert_allclose(coefficients(path), joint.snapshot.head.coef_, rtol=1e-9, atol=1e-9)


def test_another_process_that_holds_the_file_is_waited_for_only_so_long(kind, samples, path):
    begun, end = threading.Event(), threading.Event()

    def hold(model):
        begun.set()
        end.wait(10)
        return model.learn(samples / "green", "green")

    holder = threading.Thread(
        target=ModelFile(path, backbone=kind.network()).change, args=("learn", hold)
    )
    holder.start()
    begun.wait(10)
    with pytest.raises(ModelFileError, match="another process"):
        ModelFile(path, backbone=kind.network(), timeout=0.05).learn(samples / "white", "white")
    end.set()
    holder.join()
    assert list(ModelFile(path).read().counts_) == ["blue", "green", "red"]


def test_merged_file_has_both_and_can_be_taken_back(kind, samples, path, tmp_path):
    other = kind.new()
    other.learn(samples / "green", "green")
    other.save(tmp_path / "other.acil")
    file = ModelFile(tmp_path / "both.acil")
    change = file.merge([path, tmp_path / "other.acil"])
    assert change.report.counts == {"green": 4}
    assert file.read().counts_ == {"blue": 4, "green": 4, "red": 4}
    with pytest.raises(InputError, match="exists"):
        file.merge([path, path])
    ModelFile(path).merge([path, tmp_path / "other.acil"], force=True)
    assert ModelFile(path).undo_left == 1


def test_a_file_of_another_network_is_a_fault_of_the_file(kind, path):
    with pytest.raises(ModelFileError, match="another network"):
        ModelFile(path, backbone=kind.network(seed=1)).read()


def test_the_model_knows_of_its_releases_and_no_earlier_state_is_left(kind, samples, tmp_path):
    made = kind.new(clip_norm=1.0)
    made.learn(samples)
    made.save(tmp_path / "m.acil")
    file = ModelFile(tmp_path / "m.acil", backbone=kind.network())
    file.forget(kind.samples(samples / "red")[:1], "red")
    assert file.undo_left == 1
    release = file.release(2.0, 1e-6)
    assert file.undo_left == 0
    assert set(release.classes_) == {"blue", "green", "red", "white"}
    assert len(describe(file.path)["release"]["releases"]) == 1
