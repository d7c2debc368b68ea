"""`acil audit`, `acil export --private`, receipts and advice, on small pictures and texts."""

import json
import logging
import re

import numpy as np
import pytest

from acil import ACILClassifier, load, save
from acil.privacy import SCOPE
from support.commands import acil
from support.kinds import write_texts
from support.pictures import draw, network_file
from support.texts import stand_in_for_minilm

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


@pytest.fixture(scope="module", params=["images", "texts"])
def place(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("privacy")
    network = ()
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "images":
            draw(folder / "train", 5)
            draw(folder / "more", 1, seed=1)
            network = ("--backbone", f"onnx:{network_file(folder / 'network.onnx')}")
        else:
            stand_in_for_minilm(patch)
            write_texts(folder / "train", 5)
            write_texts(folder / "more", 1, seed=1)
        options = (*network, "--expansion-size", 64, "--clip-norm", 1, "--at-least", 2)
        acil("learn", folder / "train", "--model", folder / "old.acil", *options)
        (folder / "new.acil").write_bytes((folder / "old.acil").read_bytes())
        learnt = acil("learn", folder / "more", "--model", folder / "new.acil")
        assert "can recover the features of 4 samples: docs/privacy.md#guards" in learnt.stderr
        yield folder


def one_of(folder):
    """Return the path of one sample of a class."""
    return next(path for path in folder.rglob("*") if path.is_file())


def test_samples_learnt_between_two_files_are_found(place):
    arguments = (place / "new.acil", "--previous", place / "old.acil", "--images", place / "more")
    facts = json.loads(acil("audit", *arguments, "--json").stdout)
    classes = len(list((place / "more").iterdir()))
    assert facts["learnt"] == facts["recovered"] == classes
    assert min(facts["cosines"]) > 0.999
    page = acil("audit", *arguments).stdout
    assert f"Recovered, with their classes: {classes}" in page
    assert SCOPE in page


def test_membership_is_reported_where_other_samples_are_given(place):
    arguments = ("audit", place / "new.acil", "--images", place / "train", "--others", place / "more")
    facts = json.loads(acil(*arguments, "--json").stdout)
    assert set(facts["membership"]) == {"leverage", "score"}
    assert "area under the ROC curve" in acil(*arguments).stdout


def test_samples_without_class_folders_have_no_labels(place):
    pair = ("audit", place / "new.acil", "--images", place / "train", "--others", place / "more")
    labelled = json.loads(acil(*pair, "--json").stdout)["membership"]
    flat = place / "flat.d"
    for part in ("train", "more"):
        (flat / part).mkdir(parents=True)
        for image in (place / part).glob("*/*"):
            (flat / part / f"{image.parent.name}-{image.name}").write_bytes(image.read_bytes())
    arguments = ("audit", place / "new.acil", "--images", flat / "train", "--others", flat / "more")
    found = json.loads(acil(*arguments, "--json").stdout)["membership"]
    assert found["leverage"]["area"] == pytest.approx(labelled["leverage"]["area"])
    one = next((flat / "more").iterdir())
    between = ("audit", place / "new.acil", "--previous", place / "old.acil", "--images", one, "--json")
    assert min(json.loads(acil(*between).stdout)["cosines"]) > 0.999
    empty = flat / "empty"
    empty.mkdir()
    refused = acil("audit", place / "new.acil", "--images", empty, code=1)
    assert re.search("holds no images|has no texts", refused.stderr)
    assert "--class" not in refused.stderr


def test_a_model_of_features_is_attacked_with_files_of_features(tmp_path):
    X = np.random.default_rng(0).random((40, 6)).astype(np.float32)
    for name, part in (("old", slice(30)), ("new", slice(30, 31)), ("others", slice(31, 40))):
        np.savez(tmp_path / f"{name}.npz", features=X[part], labels=np.array(["cat"] * 40)[part])
    acil("learn", tmp_path / "old.npz", "--model", tmp_path / "old.acil")
    (tmp_path / "new.acil").write_bytes((tmp_path / "old.acil").read_bytes())
    acil("learn", tmp_path / "new.npz", "--model", tmp_path / "new.acil")
    given = ("--images", tmp_path / "new.npz", "--others", tmp_path / "others.npz")
    arguments = (tmp_path / "new.acil", "--previous", tmp_path / "old.acil", *given)
    facts = json.loads(acil("audit", *arguments, "--json").stdout)
    assert (facts["learnt"], facts["recovered"], len(facts["membership"])) == (1, 1, 2)
    assert facts["cosines"][0] > 0.999


def test_a_release_says_what_it_guarantees_and_the_model_remembers_it(place):
    pytest.importorskip("dp_accounting")
    written = acil("export", place / "new.acil", "--private", place / "r.acil", "--epsilon", 2)
    assert "ε = 2, δ = 1e-06, for one sample added or removed" in written.stdout
    shown = acil("inspect", place / "r.acil").stdout
    assert "ε = 2" in shown
    assert SCOPE in shown
    assert "not measured" in shown, "the temperature would tell of the samples"
    more = ("--private", place / "s.acil", "--epsilon", 2, "--delta", 1e-6, "--json")
    again = acil("export", place / "new.acil", *more)
    assert json.loads(again.stdout)["private"]["epsilon"] > 2.5
    found = json.loads(acil("audit", place / "r.acil", "--json").stdout)
    assert (found["private"], found["recovered"]) == (True, 0)
    acil("predict", place / "r.acil", place / "more")
    acil("verify", place / "r.acil")
    # An earlier state would not know of the release.
    acil("undo", place / "new.acil", code=1)
    refused = acil("learn", place / "more", "--model", place / "r.acil", code=1)
    assert "private release" in refused.stderr


def test_nothing_but_the_release_is_written_beside_it(place):
    together = ("--private", place / "alone.acil", "--epsilon", 2, "--onnx", place / "alone.onnx")
    refused = acil("export", place / "new.acil", *together, code=1)
    assert "Only the file of --private is private" in refused.stderr
    assert not list(place.glob("alone*"))


def test_classes_of_few_samples_are_refused(place):
    assert "clip_norm 1, min_class_samples 2" in acil("inspect", place / "old.acil").stdout
    image = one_of(place / "more")
    refused = acil("learn", image, "--class", "rarest", "--model", place / "old.acil", code=1)
    assert "'rarest' would have 1 samples, fewer than min_class_samples=2" in refused.stderr
    given = acil("learn", image, "--class", "x", "--model", place / "old.acil", "--at-least", 3, code=1)
    assert "Leave out --at-least" in given.stderr


def test_forgetting_leaves_a_receipt_that_tells_no_sample(place):
    (place / "f.acil").write_bytes((place / "new.acil").read_bytes())
    image = one_of(place / "train")
    said = acil("forget", place / "f.acil", image, "--class", image.parent.name)
    assert "delete all copies" in said.stderr.replace("\n", " ")
    (line,) = (place / "f.acil.receipts.jsonl").read_text().splitlines()
    receipt = json.loads(line)
    assert receipt["forgotten_samples"] == receipt["forgotten_classes"] == 1
    assert receipt["model_before"] != receipt["model_after"]
    assert image.name not in line
    assert image.parent.name not in line


def test_nothing_is_forgotten_if_the_receipt_cannot_be_written(place):
    content = (place / "new.acil").read_bytes()
    (place / "g.acil").write_bytes(content)
    (place / "g.acil.receipts.jsonl").mkdir()
    image = one_of(place / "train")
    refused = acil("forget", place / "g.acil", image, "--class", image.parent.name, code=1)
    assert "receipts.jsonl" in refused.stderr
    assert (place / "g.acil").read_bytes() == content


def test_saving_advises_where_few_samples_lie_between_two_states(tmp_path, caplog):
    X, y = np.random.default_rng(0).random((50, 4)), np.arange(50) % 2
    clf = ACILClassifier(scores="ridge", expansion_size=16, gamma=1.0).fit(X[:20], y[:20])
    with caplog.at_level(logging.WARNING, "acil"):
        save(clf, tmp_path / "m.acil")
        save(clf.partial_fit(X[20:40], y[20:40]), tmp_path / "m.acil")
        assert not caplog.messages
        save(load(tmp_path / "m.acil").partial_fit(X[40:43], y[40:43]), tmp_path / "n.acil")
        clf = load(tmp_path / "m.acil")
        save(clf.partial_fit(X[40:42], y[40:42]).forget(X[:2], y[:2]), tmp_path / "o.acil")
        save(clf.partial_fit(X[42:43], y[42:43]), tmp_path / "o.acil")  # once is enough
    more, replaced = caplog.messages
    assert "the 3 samples between, fewer than the width 16" in more
    assert "the 4 samples between, fewer than the width 16" in replaced
