"""The attack finds samples in plain models, and says nothing that is not so."""

import numpy as np
import pytest

from acil import ACILClassifier, load, save
from acil.errors import InputError
from acil.privacy import audit

#: Random features as a backbone has them: not negative, of a few directions.
rng = np.random.default_rng(0)
MIX = rng.random((6, 12))


def samples(n, rng=rng):
    return rng.random((n, 6)) ** 2 @ MIX + 0.2 * rng.random((n, 12))


X, y = samples(300), np.repeat(["cat", "dog", "owl"], 100)
NEW = {k: (samples(k), rng.choice(["cat", "emu"], k)) for k in (1, 2, 5, 15, 40)}


def states(k, **settings):
    before = ACILClassifier(
        **({"scores": "ridge"} | {"expansion_size": 256, "gamma": 1.0, **settings})
    ).fit(X, y)
    after = ACILClassifier(
        **({"scores": "ridge"} | {"expansion_size": 256, "gamma": 1.0, **settings})
    ).fit(X, y)
    return before, after.partial_fit(*NEW[k])


@pytest.mark.parametrize("scores", ["ridge", "discriminant"])
@pytest.mark.parametrize("k", NEW)
def test_samples_between_two_states_are_recovered_with_their_classes(k, scores):
    before, after = states(k, scores=scores)
    found = audit(after, before, features=NEW[k][0])
    assert (found.learnt, found.rank, found.recovered) == (k, k, k)
    assert min(found.cosines) > 0.999
    assert sorted(found.classes) == sorted(NEW[k][1])
    assert found.features_recovered


@pytest.mark.parametrize(
    "settings",
    [{"solver": "recursive"}, {"dtype": "float32", "gamma": 100.0}, {"standardize": True}],
)
def test_neither_the_recursion_nor_float32_nor_scaling_hides_a_sample(settings):
    before, after = states(1, **settings)
    found = audit(after, before, features=NEW[1][0])
    assert found.recovered == 1
    assert found.cosines[0] > 0.999


def test_features_with_zeros_are_recovered_without_an_expansion():
    sparse = np.maximum(rng.normal(size=(310, 80)), 0)
    before = ACILClassifier(scores="ridge", expansion_size=None, gamma=1.0).fit(sparse[:300], y)
    after = before.copy().partial_fit(sparse[300:], ["cat"] * 10)
    found = audit(after, before, features=sparse[300:])
    assert found.recovered == 10
    assert min(found.cosines) > 0.999


def test_features_without_zeros_are_recovered_only_alone():
    dense = rng.random((310, 20)) + 0.1
    before = ACILClassifier(scores="ridge", expansion_size=None, gamma=1.0).fit(dense[:300], y)
    pair = audit(before.copy().partial_fit(dense[300:302], ["cat"] * 2), before)
    assert (pair.rank, pair.recovered) == (2, 0)
    one = audit(before.copy().partial_fit(dense[300:301], ["cat"]), before, features=dense[300:301])
    assert one.recovered == 1
    assert one.cosines[0] > 0.999


def test_as_many_samples_as_dimensions_hide_each_other():
    before = ACILClassifier(scores="ridge", expansion_size=None, gamma=1.0).fit(X, y)
    found = audit(before.copy().partial_fit(X[:12], y[:12]), before)
    assert (found.rank, found.recovered) == (None, 0), "nobody looked for them"


def test_what_was_forgotten_is_found_by_whoever_has_the_file_from_before():
    after = states(5)[1]
    found = audit(after.copy().forget(*NEW[5]), after, features=NEW[5][0])
    assert (found.direction, found.learnt, found.recovered) == ("forgotten", 5, 5)


@pytest.mark.parametrize("size", [None, 256])
def test_a_class_of_one_sample_is_named_and_is_that_sample_among_any_number_of_others(size):
    many, alone = samples(1200), samples(1)
    before = ACILClassifier(scores="ridge", expansion_size=size, gamma=1.0).fit(
        many, np.arange(1200) % 2
    )
    after = before.copy().partial_fit(np.r_[many[:600], alone], [1] * 600 + [2])
    for found in (audit(after, features=alone), audit(after, before, features=alone)):
        assert (found.few, found.recovered, found.classes) == ({"2": 1}, 1, ["2"])
        assert found.cosines[0] > 0.999


def test_the_one_new_sample_of_a_class_that_is_known_is_found_too():
    many, alone = samples(1200), samples(1)
    before = ACILClassifier(scores="ridge", expansion_size=None, gamma=1.0).fit(
        many, np.arange(1200) % 2
    )
    after = before.copy().partial_fit(np.r_[alone, many[:40]], [0] + [1] * 40)
    found = audit(after, before, features=alone)
    assert (found.learnt, found.recovered, found.classes) == (41, 1, ["0"])
    assert found.cosines[0] > 0.999


def test_a_model_of_few_samples_is_its_samples():
    clf = ACILClassifier(scores="ridge", expansion_size=256, gamma=1.0).fit(X[::30], y[::30])
    assert audit(clf, features=X[::30]).recovered == 10


def test_membership_is_certain_below_the_width_and_weak_far_above_it():
    members, names = X[::5], y[::5]
    wide = ACILClassifier(scores="ridge", expansion_size=256, gamma=1.0).fit(members, names)
    others = samples(60)
    few = audit(wide, features=members, labels=names, others=others, other_labels=names).membership
    assert few["leverage"].area > 0.99
    assert few["leverage"].found > 0.9
    narrow = ACILClassifier(scores="ridge", expansion_size=None, gamma=1.0).fit(X, y)
    many = audit(narrow, features=X, labels=y, others=samples(300), other_labels=y).membership
    assert 0.4 < many["leverage"].area < 0.65


@pytest.mark.parametrize("size", [None, 256])
def test_two_files_of_weights_reveal_the_sample_between_them(tmp_path, size):
    # Drawn here, whatever tests ran before: the search does not find every sample.
    X, y = samples(600, np.random.default_rng(1)), np.arange(600) % 40
    before = ACILClassifier(scores="ridge", expansion_size=size, gamma=0.1).fit(X[:-1], y[:-1])
    after = before.copy().partial_fit(X[-1:], y[-1:])
    for name, clf in (("before", before), ("after", after)):
        save(clf, tmp_path / name, inference=True)
    found = audit(load(tmp_path / "after"), load(tmp_path / "before"), features=X[-1:])
    assert (found.kind, found.learnt, found.rank, found.recovered) == ("weights", 1, 1, 1)
    assert found.cosines[0] > 0.999
    assert found.classes == [str(y[-1])]


def test_samples_and_states_of_different_models_are_refused():
    with pytest.raises(InputError, match="12 features"):
        audit(states(1)[1], features=X[:, :3])
    other = ACILClassifier(scores="ridge", expansion_size=256, gamma=1.0, random_state=1).fit(X, y)
    with pytest.raises(InputError, match="different expansions"):
        audit(states(1)[1], other)
    strange = ACILClassifier(scores="ridge", expansion_size=256, gamma=1.0).fit(X[:100], ["elk"] * 100)
    with pytest.raises(InputError, match="one model"):
        audit(states(1)[1], strange)


def test_features_may_be_what_learning_takes():
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    X, y, secret = rng.random((40, 6)), np.repeat(["cat", "dog"], 20), rng.random((3, 6))
    before = ACILClassifier(scores="ridge", expansion_size=64, gamma=1.0).fit(X, y)
    after = before.copy().partial_fit(secret, ["cat", "dog", "owl"])
    for given in (pandas.DataFrame(secret), secret[::-1], secret.astype(">f8"), secret.astype(object)):
        assert min(audit(after, before, features=given).cosines) > 0.999
