"""Files of earlier versions: what they said then, and how they go on."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.datasets import load_iris

from acil import ACILClassifier, ImageClassifier, load, save
from acil.bench.config import make_config, read_config
from acil.bench.prepare import digest
from acil.bench.records import Records
from acil.bench.report import write_report
from acil.bench.runner import run
from acil.bench.training.recipes import RECIPES, to_dict
from acil.core.classifier import learnt_of
from acil.core.files import describe, verify
from support.pictures import COLOURS, picture

GOLDEN = Path(__file__).parent / "golden"
#: Of rows 0, 15, 30 … of iris, as the version that wrote the files gave them.
SCORES = json.loads((GOLDEN / "scores.json").read_text())
X, Y = load_iris(return_X_y=True)
#: What they had learnt.
LEARNT = np.r_[0:50, 50:70, 100:108]
NAMES = np.array(["setosa", "versicolor", "virginica"])[Y]


@pytest.mark.parametrize("name", SCORES)
def test_files_of_format_5_score_as_they_did(name, tmp_path):
    file = GOLDEN / f"{name}-5.acil"
    model = load(file)
    np.testing.assert_allclose(model.decision_function(X[::15]), SCORES[name], rtol=1e-9, atol=1e-12)
    assert all(check.ok for check in verify(file)), verify(file)
    save(model, tmp_path / "again.acil", inference=name == "inference")
    assert describe(tmp_path / "again.acil")["format_version"] == 6
    for again in (load(tmp_path / "again.acil"), load(tmp_path / "again.acil", inference=True)):
        np.testing.assert_allclose(again.decision_function(X[::15]), SCORES[name], rtol=1e-9, atol=1e-12)


def test_the_old_balance_stays_until_another_is_set():
    model = load(GOLDEN / "balanced-5.acil")
    model.partial_fit(X[:5], NAMES[:5]).forget(X[:5], NAMES[:5]).solve()
    np.testing.assert_allclose(model.decision_function(X[::15]), SCORES["balanced"], rtol=1e-8)
    pooled = ACILClassifier(expansion_size=24, gamma=2.0, class_balance=1.0).fit(
        X[LEARNT], NAMES[LEARNT]
    )
    model.set_params(class_balance=1.0).solve()
    np.testing.assert_allclose(model.coef_, pooled.coef_, rtol=1e-7)


def test_discriminants_of_format_5_learn_more():
    model = load(GOLDEN / "discriminant-5.acil")
    rest = np.setdiff1d(np.arange(len(X)), LEARNT)
    model.partial_fit(X[rest], NAMES[rest])
    assert model.score(X, NAMES) > 0.9
    novelty = model.relative_novelty(np.concatenate([X, X * 30]))
    # The limit is a typical one until more has been learnt.
    assert np.mean(novelty[: len(X)] > 1) < 0.3
    assert (novelty[len(X) :] > 1).all()


def test_discriminants_of_before_keep_their_rule_of_few_samples(tmp_path):
    old, new = load(GOLDEN / "discriminant-5.acil"), ACILClassifier().fit(X[LEARNT], NAMES[LEARNT])
    for model, unseen in ((old, (0.0, 0.0)), (new, (0.09, 1.0))):
        model.partial_fit(X[108:110], ["another", "another"])
        save(model, tmp_path / "m.acil")
        again = load(tmp_path / "m.acil")
        mixer = learnt_of(again).model.mixer
        assert (mixer.unseen, mixer.unseen_by_one) == unseen
        assert all(check.ok for check in verify(tmp_path / "m.acil"))
        again.solve()
        np.testing.assert_allclose(again.decision_function(X), model.solve().decision_function(X))


def test_discriminants_of_before_keep_one_temperature_for_all_rows(tmp_path):
    old, new = load(GOLDEN / "discriminant-5.acil"), ACILClassifier(24, standardize=True)
    old.partial_fit(X[108:110], ["another", "another"])
    save(old, tmp_path / "m.acil")
    for model in (old, load(tmp_path / "m.acil"), load(tmp_path / "m.acil", inference=True)):
        heated = model.decision_function(X) / model.temperature_
        np.testing.assert_allclose(model.predict_proba(X), softmax(heated, axis=1), rtol=1e-9)
    new.fit(X[LEARNT], NAMES[LEARNT])
    assert (learnt_of(old).hotter, learnt_of(new).hotter) == (0, 1)


def test_a_classifier_of_images_answers_as_it_did(tmp_path):
    pytest.importorskip("onnxruntime", reason="needs acil[onnx]")
    for name in ("images-6.acil", "network.onnx"):
        shutil.copy(GOLDEN / name, tmp_path)
    model = ImageClassifier.load(tmp_path / "images-6.acil")
    generator = np.random.default_rng(5)
    found = model.classify([picture(COLOURS[name], generator) for name in COLOURS])
    assert [prediction.label for prediction in found] == ["blue", "green", "red", "unknown"]
    # As the version that wrote the file gave them; the network computes in float32.
    novelty = [0.4208561206, 0.3324156917, 0.0527329797, 1015.0027085]
    np.testing.assert_allclose([prediction.novelty for prediction in found], novelty, rtol=1e-3)
    assert model.learn([picture(COLOURS["white"], generator)], "white").counts == {"white": 1}


def test_identities_of_recipes_are_those_that_runs_and_networks_are_found_by():
    identities = json.loads((GOLDEN / "identities.json").read_text())
    assert {name: digest(to_dict(recipe)) for name, recipe in RECIPES.items()} == identities


def test_a_run_is_finished_and_its_report_is_the_same(tmp_path):
    folder = shutil.copytree(GOLDEN / "run", tmp_path / "run")
    write_report([folder], plots=False)
    assert (folder / "report" / "report.md").read_text() == (GOLDEN / "run" / "report.md").read_text()
    before = Records(folder / "records.jsonl").read()
    run(make_config(read_config(folder / "config.toml")), folder, resume=True)
    after = Records(folder / "records.jsonl").read()
    assert after[: len(before)] == before
    assert {record["kind"] for record in after[len(before) :]} <= {"environment"}
