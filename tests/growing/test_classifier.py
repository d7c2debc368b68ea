"""What classifiers of images and of texts promise: whole states, exact changes, words for misuse."""

import copy
import pickle
import threading

import numpy as np
import pytest

from acil.core import ridge
from acil.errors import InputError, NotFittedError, UnsupportedError
from acil.growing import UNKNOWN_ABOVE

EACH = 6


@pytest.fixture(scope="module")
def samples(kind, tmp_path_factory):
    folder = tmp_path_factory.mktemp("samples")
    return kind.write(folder / "train", EACH), kind.write(folder / "test", 4, seed=1)


@pytest.fixture
def joint(kind, samples):
    model = kind.new()
    model.learn(samples[0])
    return model


@pytest.fixture(scope="module")
def features(kind, samples):
    return kind.new().prepare(samples[1]).features


def test_inference_file_predicts_the_same_and_cannot_learn(kind, samples, joint, tmp_path):
    joint.save(tmp_path / "small.acil", inference=True)
    small = kind.classifier.load(tmp_path / "small.acil", backbone=kind.network())
    asked = kind.samples(samples[1] / "red")
    assert small.predict(asked) == joint.predict(asked, None)
    assert small.classify(asked[:1])[0].novelty is None
    with pytest.raises(UnsupportedError, match="only predict"):
        small.learn(samples[0])


def test_nothing_learnt_is_told(kind, tmp_path):
    model = kind.new()
    for call in (lambda: model.classes_, lambda: model.predict([]), lambda: model.save(tmp_path / "m")):
        with pytest.raises(NotFittedError, match="not learnt"):
            call()


def test_states_that_cannot_be_removed_stop_a_change_without_undo(joint, tmp_path, monkeypatch):
    path = tmp_path / "m.acil"
    joint.save(path)
    joint.save(path, undo=True)
    content = path.read_bytes()
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(InputError, match="may not write"):
        joint.save(path, inference=True, undo=False)
    assert path.read_bytes() == content


def test_forgetting_everything_or_too_much_is_refused(kind, samples, joint):
    before, red = joint.snapshot, kind.samples(samples[0] / "red")
    with pytest.raises(InputError, match="nothing would be left"):
        joint.forget(samples[0])
    assert joint.snapshot is before
    untracked = kind.new(track=False)
    untracked.learn(samples[0])
    before = untracked.snapshot
    with pytest.raises(InputError, match="never learnt"):
        untracked.forget(red, "violet")
    with pytest.raises(InputError, match="only 6 were learnt"):
        untracked.forget([*red, *red], "red")
    assert untracked.snapshot is before


def test_predictions_go_on_while_the_model_learns(kind, samples, features):
    """Readers see the old state or the new one, never anything between."""
    model, (train, _) = kind.new(), samples
    for name in ("red", "blue"):
        model.learn(train / name, name)
    changes = [model.prepare(train / name, name) for name in ("green", "white")]
    states, failures, stop = [], [], threading.Event()
    names = [""] * len(features)

    def read():
        try:
            while not stop.is_set():
                snapshot = model.snapshot
                found = snapshot.classify(features, names, 4, None)
                states.append((len(snapshot.totals), len(found[0].top)))
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        for change in (model.learn, model.forget):
            for given in changes:
                change(given)
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures
    assert all(known == named for known, named in states)


def test_novelty_is_the_same_in_any_order_of_learning_but_for_its_unit(kind, samples, joint, features):
    train = samples[0]
    other = kind.new(track=False)
    for name in ("white", "red", "blue", "green", "red"):
        other.learn(train / name, name)
    other.forget(train / "red", "red")
    # The unit is measured when images are learnt, and then not in any order.
    found, expected = (m.snapshot.head.relative_novelty(features) for m in (other, joint))
    assert 0.5 < found[0] / expected[0] < 2
    # Leverages are solved from sums that were added and subtracted: eps · κ
    np.testing.assert_allclose(found / found[0], expected / expected[0], rtol=1e-8)


def test_what_is_derived_from_the_sums_is_computed_once(joint, features, monkeypatch):
    factors, Factor = [], ridge.Factor
    monkeypatch.setattr(ridge, "Factor", lambda *given: factors.append(1) or Factor(*given))
    given = (features, [""] * len(features), 2, UNKNOWN_ABOVE)
    first = joint.snapshot.classify(*given)
    before = len(factors)
    assert joint.snapshot.classify(*given) == first
    assert len(factors) == before


def test_evaluation_leaves_out_and_names_what_was_not_learnt(samples, joint):
    joint.forget(samples[0] / "red", "red")
    found = joint.evaluate(samples[1])
    assert (found.images, found.not_learnt) == (12, {"red": 4})
    assert "red" not in found.per_class
    with pytest.raises(InputError, match="None of these"):
        joint.evaluate(samples[1] / "red", "red")


@pytest.mark.parametrize("way", [pickle.dumps, copy.deepcopy])
def test_pickling_says_how_to_save(kind, way):
    with pytest.raises(TypeError, match=rf"Use save and {kind.classifier.__name__}\.load"):
        way(kind.new())
