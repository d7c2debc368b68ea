"""The one way to change a model file: whole or not at all, by the gate's leave, with a receipt."""

import json
import threading

import numpy as np
import pytest

from acil import ImageClassifier, load
from acil.core.files import describe
from acil.errors import InputError, ModelFileError
from acil.growing import ModelFile
from acil.growing.modelfile import signature_of
from acil.growing.undo import kept_states
from support.pictures import draw, network


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    return draw(tmp_path_factory.mktemp("pictures"), 4)


@pytest.fixture
def path(pictures, tmp_path):
    made = ImageClassifier(network())
    for name in ("red", "blue"):
        made.learn(pictures / name, name)
    made.save(tmp_path / "m.acil")
    return tmp_path / "m.acil"


@pytest.fixture
def file(path):
    return ModelFile(path, backbone=network())


def coefficients(path):
    return load(path).coef_


def test_the_first_change_makes_the_file_and_the_next_goes_on_from_it(pictures, tmp_path):
    path = tmp_path / "new.acil"
    file = ModelFile(path, new=lambda: ImageClassifier(network()), backbone=network())
    first = file.learn(pictures / "red", "red")
    assert (first.before, first.earlier, first.report.counts) == (None, None, {"red": 4})
    second = file.learn(pictures / "blue", "blue")
    assert second.before.totals == {"red": 4}
    assert second.after.totals == file.read().counts_ == {"blue": 4, "red": 4}
    assert second.earlier == first.signature != second.signature
    assert file.undo_left == 1
    with pytest.raises(InputError, match="no such file"):
        ModelFile(tmp_path / "none.acil").learn(file.prepare(pictures / "red", "red"))


def test_a_change_of_nothing_writes_nothing(pictures, file):
    before = signature_of(file.path)  # without the time of the last read
    change = file.learn(pictures / "red", "red")
    assert (change.report.counts, len(change.report.repeated)) == ({}, 4)
    assert change.after is change.before
    assert (signature_of(file.path), file.undo_left) == (before, 0)


def test_a_gate_sees_both_states_and_may_refuse(pictures, file):
    seen = []

    def gate(before, after):
        seen.append((before.totals, after.totals))
        if len(after.totals) > 2:
            raise InputError("too many classes")
        return {"classes": len(after.totals)}

    file = ModelFile(file.path, backbone=network(), gate=gate)
    content = file.path.read_bytes()
    with pytest.raises(InputError, match="too many"):
        file.learn(pictures / "green", "green")
    assert file.path.read_bytes() == content
    assert kept_states(file.path) == []
    assert seen == [({"blue": 4, "red": 4}, {"blue": 4, "green": 4, "red": 4})]
    change = file.forget([pictures / "red" / "0-0.png"], "red")
    assert change.measured == {"classes": 2}


def test_undo_brings_back_the_state_unless_that_is_refused(pictures, file):
    before = file.path.read_bytes()
    file.learn(pictures / "green", "green")
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


def test_forgetting_leaves_a_receipt_whoever_forgets(pictures, file):
    image = pictures / "red" / "0-0.png"
    place, receipt = file.forget([image], "red").receipt
    assert place.name == "m.acil.receipts.jsonl"
    assert json.loads(place.read_text()) == receipt
    assert (receipt["forgotten_samples"], receipt["forgotten_classes"]) == (1, 1)
    assert file.learn([image], "red").receipt is None
    place.unlink()
    place.mkdir()
    content = file.path.read_bytes()
    with pytest.raises(ModelFileError, match="receipts"):
        file.forget([image], "red")
    assert file.path.read_bytes() == content


def test_without_undo_no_earlier_state_stays(pictures, file):
    file.learn(pictures / "green", "green")
    assert file.undo_left == 1
    ModelFile(file.path, backbone=network(), undo=False).learn(pictures / "white", "white")
    assert file.undo_left == 0


def test_changes_by_many_threads_are_all_in_the_file(pictures, path):
    """Each reads what the others have saved, so the model is that of all samples at once."""
    names = ["green", "white"]
    samples = ModelFile(path, backbone=network()).prepare
    jobs = [samples([image], name) for name in names for image in sorted((pictures / name).iterdir())]

    def work(job):
        ModelFile(path, backbone=network()).learn(job)

    threads = [threading.Thread(target=work, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    joint = ImageClassifier(network())
    joint.learn(pictures)
    np.testing.assert_allclose(coefficients(path), joint.snapshot.head.coef_, rtol=1e-9, atol=1e-9)


def test_another_process_that_holds_the_file_is_waited_for_only_so_long(pictures, path):
    begun, end = threading.Event(), threading.Event()

    def hold(model):
        begun.set()
        end.wait(10)
        return model.learn(pictures / "green", "green")

    holder = threading.Thread(target=ModelFile(path, backbone=network()).change, args=("learn", hold))
    holder.start()
    begun.wait(10)
    with pytest.raises(ModelFileError, match="another process"):
        ModelFile(path, backbone=network(), timeout=0.05).learn(pictures / "white", "white")
    end.set()
    holder.join()
    assert list(ModelFile(path).read().counts_) == ["blue", "green", "red"]


def test_merged_file_has_both_and_can_be_taken_back(pictures, path, tmp_path):
    other = ImageClassifier(network())
    other.learn(pictures / "green", "green")
    other.save(tmp_path / "other.acil")
    file = ModelFile(tmp_path / "both.acil")
    change = file.merge([path, tmp_path / "other.acil"])
    assert change.report.counts == {"green": 4}
    assert file.read().counts_ == {"blue": 4, "green": 4, "red": 4}
    with pytest.raises(InputError, match="exists"):
        file.merge([path, path])
    ModelFile(path).merge([path, tmp_path / "other.acil"], force=True)
    assert ModelFile(path).undo_left == 1


def test_a_file_of_another_network_is_a_fault_of_the_file(path):
    with pytest.raises(ModelFileError, match="another network"):
        ModelFile(path, backbone=network(seed=1)).read()


def test_the_model_knows_of_its_releases_and_no_earlier_state_is_left(pictures, tmp_path):
    made = ImageClassifier(network(), clip_norm=1.0)
    made.learn(pictures)
    made.save(tmp_path / "m.acil")
    file = ModelFile(tmp_path / "m.acil", backbone=network())
    file.forget([pictures / "red" / "0-0.png"], "red")
    assert file.undo_left == 1
    release = file.release(2.0, 1e-6)
    assert file.undo_left == 0
    assert set(release.classes_) == {"blue", "green", "red", "white"}
    assert len(describe(file.path)["release"]["releases"]) == 1
