"""γ chosen from the sums: as good as from the data, and a function of the sums alone."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from acil import ACILClassifier, load, save
from acil.core import ridge
from acil.core.files import describe
from acil.errors import InputError
from support.strategies import Unchanged, blobs, cut, learn_phases, problems, relative


@pytest.mark.parametrize("fit_intercept", [False, True])
@settings(max_examples=15)
@given(
    problem=problems(min_rows=20),
    size=st.one_of(st.none(), st.integers(10, 100)),
    seed=st.integers(0, 2**16),
)
def test_the_choice_depends_on_the_samples_alone(fit_intercept, problem, size, seed):
    options = {"expansion_size": size, "fit_intercept": fit_intercept}
    phased, joint = (
        ACILClassifier(**({"scores": "ridge"} | options)),
        ACILClassifier(**({"scores": "ridge"} | options)).fit(problem.X, problem.y),
    )
    # Predictions in between choose other γ, which must leave no trace.
    learn_phases(phased, problem, cut(problem.y, 10, seed, by_class=True), predicting=True)
    phased.solve()
    assert phased.gamma_ == pytest.approx(joint.gamma_, rel=1e-12)
    scores = phased.decision_function(problem.held_out)
    assert relative(scores, joint.decision_function(problem.held_out)) <= 1e-7


def test_a_stream_that_starts_with_one_sample_gets_the_gamma_of_a_full_fit(digits):
    X, y = digits
    stream = ACILClassifier(scores="ridge", expansion_size=200)
    for i in range(400):
        stream.partial_fit(X[i : i + 1], y[i : i + 1]).predict(X[:1])
    joint = ACILClassifier(scores="ridge", expansion_size=200).fit(X[:400], y[:400])
    assert abs(stream.score(X[400:], y[400:]) - joint.score(X[400:], y[400:])) <= 0.02
    assert stream.solve().gamma_ == pytest.approx(joint.gamma_, rel=1e-12)


@pytest.mark.parametrize("options", [{}, {"fit_intercept": True, "class_balance": True}])
@pytest.mark.parametrize("name", ["condition_", "temperature_", "novelty", "relative_novelty"])
def test_weights_are_those_of_gamma_after_a_question_that_needs_a_larger_one(name, options):
    # γ is the least one that float32 allows, and three rows later too small.
    X = np.random.default_rng(0).normal(size=(4000, 18))
    y = (X[:, 0] > 0) + 2 * (X[:, 1] > 0.5)
    X[:, 16], X[:, 17] = X[:, 15], X[:, 17] + 40
    model = ACILClassifier(expansion_size=None, dtype="mixed", **({"scores": "ridge"} | options)).fit(
        X, y
    )
    first = model.gamma_
    X[:3, 17] = 650
    for i in range(3):
        model.partial_fit(X[i : i + 1], y[i : i + 1])
    model.predict(X)
    found = getattr(model.compact(), name)
    if callable(found):
        found(X[:2])
    assert model.gamma_ > first
    expected = model.copy().solve()
    assert relative(model.coef_, expected.coef_) <= 1e-5
    assert relative(model.decision_function(X), expected.decision_function(X)) <= 1e-5


@pytest.mark.parametrize("reload", [False, True])
def test_a_stream_that_is_saved_now_and_then_still_chooses_gamma_again(tmp_path, reload):
    problem = blobs(300, 16, 5, 0)
    stream = ACILClassifier(scores="ridge", expansion_size=256).fit(problem.X[:30], problem.y[:30])
    first = stream.gamma_
    for i in range(30, 150):
        if i % 15 == 0:
            save(stream, tmp_path / "model.acil")
            stream = load(tmp_path / "model.acil") if reload else stream
            stream.novelty(problem.held_out)
        stream.partial_fit(problem.X[i : i + 1], problem.y[i : i + 1]).predict(problem.held_out)
    assert stream.gamma_ != first


@pytest.mark.parametrize("scores", ["ridge", "discriminant"])
@pytest.mark.parametrize("dtype", ["float32", "mixed"])
def test_a_stream_that_outgrows_its_gamma_in_float32_gets_a_larger_one(tmp_path, dtype, scores):
    X, y = load_digits(return_X_y=True)
    model = ACILClassifier(expansion_size=512, dtype=dtype, scores=scores).fit(X[:100], y[:100])
    first = model.gamma_
    for i in range(100, 190):
        model.partial_fit(X[i : i + 1], y[i : i + 1])
        if i % 20 == 0:
            model.predict_proba(X[:10])
    save(model, tmp_path / "model.acil")
    # That of discriminants was raised for the few samples at the beginning.
    assert model.gamma_ > first or (scores == "discriminant" and model.gamma_ == first)
    loaded = load(tmp_path / "model.acil")
    assert relative(model.decision_function(X), loaded.decision_function(X)) <= 1e-6


def test_few_new_samples_keep_gamma_and_a_solution_chooses_it_again():
    problem = blobs(300, 8, 5, 0)
    # The later samples have random labels, which asks for more regularization.
    y = np.r_[problem.y[:200], np.random.default_rng(0).permutation(problem.y[200:])]
    model = ACILClassifier(scores="ridge", expansion_size=200).fit(problem.X[:200], y[:200])
    first = model.gamma_
    for i in range(200, 220):
        model.partial_fit(problem.X[i : i + 1], y[i : i + 1])
    assert model.gamma_ == first
    model.partial_fit(problem.X[220:], y[220:]).solve()
    assert model.gamma_ > first
    assert model.gamma == "auto"


def test_saving_keeps_the_gamma_and_a_loaded_model_goes_on_choosing(tmp_path):
    problem = blobs(300, 8, 5, 0)
    model = ACILClassifier(scores="ridge", expansion_size=200).fit(problem.X[:200], problem.y[:200])
    model.predict(problem.held_out)
    for i in range(200, 210):
        model.partial_fit(problem.X[i : i + 1], problem.y[i : i + 1])
    gamma = model.gamma_
    save(model, tmp_path / "model.acil")
    again = load(tmp_path / "model.acil")
    assert model.gamma_ == again.gamma_ == gamma
    for own in (model, again):
        own.partial_fit(problem.X[210:] * 3, problem.y[210:]).solve()
    assert again.gamma_ == pytest.approx(model.gamma_, rel=1e-12) != gamma
    model.set_gamma(7.0)
    save(model, tmp_path / "model.acil")
    assert load(tmp_path / "model.acil").solve().gamma_ == 7.0, "a γ that was set stays"


def test_one_class_and_one_sample_have_a_gamma():
    model = ACILClassifier(scores="ridge", expansion_size=30).fit([[1.0, 2.0]], ["a"])
    assert model.predict([[1.0, 2.0]]).tolist() == ["a"]
    assert 0 < model.gamma_ < np.inf
    assert model.gamma_relative_ == pytest.approx(1.0), "nothing to judge by: trace / d"
    zeros = ACILClassifier(scores="ridge", expansion_size=30).fit(np.zeros((4, 2)), [0, 0, 1, 1])
    assert zeros.gamma_relative_ == np.inf
    assert np.isfinite(zeros.decision_function(np.ones((1, 2)))).all()


def test_selected_gamma_is_used_from_then_on():
    problem = blobs(300, 8, 5, 0)
    model = ACILClassifier(scores="ridge", expansion_size=60, gamma=1e-3).fit(problem.X, problem.y)
    before = model.decision_function(problem.held_out)
    chosen = model.select_gamma()
    assert model.gamma_ == chosen != 1e-3
    assert model.gamma == 1e-3, "the argument is the user's"
    fresh = ACILClassifier(scores="ridge", expansion_size=60, gamma=chosen).fit(problem.X, problem.y)
    scores = model.decision_function(problem.held_out)
    assert relative(scores, fresh.decision_function(problem.held_out)) <= 1e-12
    assert relative(before, scores) > 1e-6
    model.partial_fit(problem.X, problem.y)
    assert model.gamma_ == chosen


def test_own_candidates_are_the_only_ones():
    problem = blobs(300, 8, 5, 0)
    model = ACILClassifier(scores="ridge", expansion_size=60).fit(problem.X, problem.y)
    assert model.select_gamma([0.5, 1e9]) == 0.5
    assert model.select_gamma(np.array([1e9])) == 1e9
    assert model.select_gamma(torch.tensor([3.0], dtype=torch.float64)) == 3.0


def test_a_candidate_that_fits_the_samples_exactly_is_left_out():
    # 20 samples in 100 dimensions, γ = 1e-6: they are fitted exactly and the criterion is 0 / 0.
    problem = blobs(20, 8, 3, 0)
    model = ACILClassifier(scores="ridge", expansion_size=100, gamma=1.0).fit(problem.X, problem.y)
    assert model.select_gamma([1e-6, 10.0]) == 10.0
    with Unchanged(model, problem.held_out), pytest.raises(InputError, match="20 samples"):
        model.select_gamma([0.0, 1e-6])


@pytest.mark.parametrize("gammas", [[], [-1.0], [np.nan], [np.inf], [1e308], ["a"], [None]])
def test_bad_candidates_change_nothing(gammas):
    problem = blobs(60, 8, 3, 0)
    model = ACILClassifier(scores="ridge", expansion_size=30).fit(problem.X, problem.y)
    with Unchanged(model, problem.held_out), pytest.raises(InputError):
        model.select_gamma(gammas)


@pytest.mark.parametrize("dtype", ["float32", "mixed"])
def test_lower_precision_never_chooses_a_gamma_that_it_refuses(dtype):
    problem = blobs(400, 8, 5, 0)
    model = ACILClassifier(scores="ridge", expansion_size=150, dtype=dtype).fit(
        problem.X * 100, problem.y
    )
    exact = ACILClassifier(scores="ridge", expansion_size=150, gamma=model.gamma_).fit(
        problem.X * 100, problem.y
    )
    found = model.decision_function(problem.held_out * 100)
    assert relative(found, exact.decision_function(problem.held_out * 100)) <= 1e-3


def test_gamma_grows_with_weights_whose_square_overflows():
    problem = blobs(60, 4, 3, 0)
    fits = [
        ACILClassifier(scores="ridge", expansion_size=16, gamma="auto").fit(
            problem.X, problem.y, sample_weight=weight
        )
        for weight in (2.0**100, 2.0**600)
    ]
    assert fits[1].gamma_ == pytest.approx(2.0**500 * fits[0].gamma_)


def test_relative_gamma_does_not_depend_on_the_scale_of_features():
    problem = blobs(300, 8, 5, 0)
    small = ACILClassifier(scores="ridge", expansion_size=40).fit(problem.X, problem.y)
    large = ACILClassifier(scores="ridge", expansion_size=40).fit(problem.X * 1e3, problem.y)
    assert small.gamma_relative_ == pytest.approx(large.gamma_relative_, rel=1e-6)
    assert large.gamma_ == pytest.approx(small.gamma_ * 1e6, rel=1e-6)
    assert small.set_gamma(0.25, relative=True) == pytest.approx(
        large.set_gamma(0.25, relative=True) / 1e6
    )
    assert small.gamma_relative_ == pytest.approx(0.25)
    # In these units it is more than a model can have.
    with pytest.raises(InputError, match="gamma must be"):
        large.set_gamma(1e304, relative=True)
    assert large.gamma_relative_ == pytest.approx(0.25)


@pytest.mark.parametrize("dataset", [load_iris, load_wine, load_breast_cancer], ids=lambda f: f.__name__)
def test_a_newcomer_gets_a_good_first_number(dataset):
    """The default, but narrower: within four points of a scaled logistic regression."""
    X, y = dataset(return_X_y=True)
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    rival = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
    ours = cross_val_score(ACILClassifier(scores="ridge", expansion_size=512), X, y, cv=folds).mean()
    assert ours >= cross_val_score(rival, X, y, cv=folds).mean() - 0.04


def test_a_wide_model_keeps_gamma_in_its_file_while_few_samples_come(tmp_path, monkeypatch):
    monkeypatch.setattr(ridge, "_SLOW_CHOICE", 64)
    generator = np.random.default_rng(0)
    X = generator.normal(size=(400, 40))
    y = (X[:, 0] + generator.normal(size=400) > 0).astype(int)

    def learnt(start, stop):
        """Learn more in a file, as a command does; return the model, and the samples behind its γ."""
        model = load(tmp_path / "m.acil")
        save(model.partial_fit(X[start:stop], y[start:stop]), tmp_path / "m.acil")
        return model, describe(tmp_path / "m.acil")["gamma_samples"]

    save(ACILClassifier(expansion_size=64).fit(X[:100], y[:100]), tmp_path / "m.acil")
    first = load(tmp_path / "m.acil").gamma_
    assert describe(tmp_path / "m.acil")["gamma_samples"] == 100
    model, behind = learnt(100, 105)
    assert (model.gamma_, behind) == (first, 100)
    model, behind = learnt(105, 190)  # many at once
    assert behind == 190
    joint = ACILClassifier(expansion_size=64).fit(X[:190], y[:190])
    assert model.gamma_ == pytest.approx(joint.gamma_, rel=1e-12)
    for start in range(190, 382, 8):
        model, behind = learnt(start, start + 8)
    assert behind == 382  # more than twice as many
    model, behind = learnt(382, 390)
    assert (behind, model.condition_ > 0) == (382, True)
    assert model.solve().gamma_ == pytest.approx(
        ACILClassifier(expansion_size=64).fit(X[:390], y[:390]).gamma_, rel=1e-12
    )
    # With the kept γ the weights are those of the sums.
    kept = ACILClassifier(expansion_size=64, gamma=load(tmp_path / "m.acil").gamma_)
    kept.fit(X[:390], y[:390])
    np.testing.assert_allclose(load(tmp_path / "m.acil").coef_, kept.coef_, rtol=1e-6, atol=1e-9)
