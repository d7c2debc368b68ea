"""`verify` notices parts that do not belong together, though every checksum is right."""

import numpy as np
import pytest
from safetensors.numpy import load_file

from acil import ACILClassifier, load, save
from acil.core.files import verify
from acil.privacy import privatize
from support.modelfiles import X, header_of, rewrite, write_model

KINDS = [
    {},
    {"expansion_size": None, "gamma": 0.0},
    {"expansion_size": 60, "gamma": "auto"},
    {"dtype": "float32", "fit_intercept": True},
    {"dtype": "mixed", "class_balance": True},
    {"solver": "recursive"},
    {"scores": "discriminant", "standardize": True},
    {"inference": True},
]


def failed(path):
    return [check.name for check in verify(path) if not check.ok]


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_saved_models_pass(tmp_path, options):
    assert not failed(write_model(tmp_path / "m.acil", **options))


def test_model_of_tiny_features_with_intercepts_passes(tmp_path):
    rows = np.random.default_rng(0).normal(size=(60, 4)) * 1e-6
    clf = ACILClassifier(scores="ridge", expansion_size=None, gamma=1e-3, fit_intercept=True)
    save(clf.fit(rows, np.arange(60) % 7), tmp_path / "m.acil")
    assert not failed(tmp_path / "m.acil")


def changed(name, change):
    def damage(path):
        tensor = load_file(path)[name]
        rewrite(path, **{name: change(tensor).astype(tensor.dtype)})

    return damage


def with_header(**changes):
    return lambda path: rewrite(path, changes)


@pytest.mark.parametrize(
    ("damage", "check"),
    [
        (changed("coef", lambda t: t * (1 + 1e-9)), "weights"),
        (changed("gram", lambda t: -t), "sums"),
        (changed("gram", lambda t: t * 0.9), "sums"),
        (changed("gram", lambda t: np.append(t[:-1], -1e300)), "sums"),
        (changed("moment", lambda t: t * 2), "sums"),
        (changed("moment", lambda t: t[:, ::-1]), "weights"),
        (with_header(weights=[1.0, 29.0]), "sums"),
        (with_header(counts=[30, 0]), "counts"),
        (with_header(gamma=1.1), "weights"),
        (changed("projection", lambda t: t + 1), "values"),
        (changed("coef", lambda t: t * np.nan), "values"),
        (with_header(kind="inference"), "header"),
    ],
    ids=range(12),
)
def test_what_does_not_belong_together_is_noticed(tmp_path, damage, check):
    path = write_model(tmp_path / "m.acil", expansion_size=40)
    damage(path)
    assert check in failed(path)
    if check not in ("values", "header"):
        load(path)


def test_changed_mixing_which_decides_discriminant_scores_is_noticed(tmp_path):
    options = {"scores": "discriminant", "expansion_size": 40, "gamma": "auto"}
    path = write_model(tmp_path / "m.acil", **options)
    right = load(path).predict(X)
    for change in (lambda t: t[:, ::-1], lambda t: t * 1.01, lambda t: -t):
        write_model(path, **options)
        changed("mixing", change)(path)
        assert failed(path) == ["mixing"]
    # The weights and sums are as they were, but not what load() answers.
    assert (load(path).predict(X) != right).mean() > 0.9
    assert (load(path, inference=True).predict(X) != right).mean() > 0.9


@pytest.mark.parametrize("dtype", ["float64", "mixed"])
def test_discriminants_of_one_class_and_of_symmetric_ones_pass(tmp_path, dtype):
    rows = np.random.default_rng(0).normal(size=(20, 3))
    for labels in (np.zeros(40), np.repeat([0, 1], 20)):
        model = ACILClassifier(expansion_size=None, scores="discriminant", dtype=dtype)
        save(model.fit(np.concatenate([rows, -rows]), labels), tmp_path / "m.acil")
        assert not failed(tmp_path / "m.acil")


def test_changed_matrix_of_the_recursion_is_noticed(tmp_path):
    path = write_model(tmp_path / "m.acil", solver="recursive")
    changed("rfaum", lambda t: -t)(path)
    assert failed(path) == ["rfaum"]
    write_model(path, solver="recursive")
    changed("coef", lambda t: 3 * t)(path)
    assert failed(path) == ["weights"]


def test_flipped_bit_is_found_by_its_checksum(tmp_path):
    path = write_model(tmp_path / "m.acil")
    rewrite(path, {"checksums": header_of(path)["checksums"] | {"moment": 1}})
    assert failed(path) == ["checksums"]


def test_private_release_passes_though_its_sums_are_noisy(tmp_path):
    pytest.importorskip("dp_accounting")
    X, y = np.random.default_rng(0).random((90, 4)), np.repeat([0, 1, 2], 30)
    model = ACILClassifier(scores="ridge", expansion_size=None, clip_norm=1.0).fit(X, y)
    save(privatize(model, epsilon=0.5, delta=1e-6), tmp_path / "m.acil")
    assert not failed(tmp_path / "m.acil")
