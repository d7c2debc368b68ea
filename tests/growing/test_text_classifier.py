"""TextClassifier: grows, forgets, merges and saves exactly, and tracks calls instead of texts."""

import hashlib
import json

import numpy as np
import pytest

import acil
from acil import ImageClassifier, TextClassifier, load
from acil.core.files import describe, verify
from acil.encoders.tables import read_features, write_features
from acil.errors import InputError, NotFittedError
from acil.growing import ModelFile, load_classifier, reader_of
from acil.growing.snapshot import LEAST_TRACKED, CallTracker
from acil.privacy import audit
from support.pictures import draw, network
from support.texts import TOPICS, sentences, stand_in_for_minilm, tiny_encoder

#: Rounding of sums in another order; κ is below 1e4 here.
SCORES = 1e-9
EACH = 14


@pytest.fixture(autouse=True)
def small_network(monkeypatch):
    stand_in_for_minilm(monkeypatch)


def topics(n=EACH, seed=0):
    return {name: sentences(name, n, seed) for name in TOPICS}


def flat(texts):
    return [text for several in texts.values() for text in several]


def learnt(*names, width=64, **options):
    """Return a model that has learnt these classes, one after another."""
    model = TextClassifier(expansion_size=width, **options)
    for name in names:
        assert model.learn(topics()[name], name).counts == {name: EACH}
    return model


@pytest.fixture
def joint():
    return jointly()


def jointly(**options):
    model = TextClassifier(expansion_size=64, **options)
    texts = topics()
    model.learn(flat(texts), np.repeat([*texts], EACH).tolist())
    return model


def same(model, expected, seed=5):
    texts = flat(topics(6, seed))
    rows = expected.prepare(texts).features
    found, other = model.snapshot.head, expected.snapshot.head
    for a, b in (
        (found.decision_function(rows), other.decision_function(rows)),
        (found.coef_, other.coef_),
    ):
        np.testing.assert_allclose(a, b, rtol=SCORES, atol=SCORES)
    assert model.predict(texts, None) == expected.predict(texts, None)


def test_learning_class_by_class_equals_learning_all_at_once(joint):
    phased = learnt("weather", "card", "travel")
    same(phased, joint)
    assert phased.counts_ == joint.counts_ == dict.fromkeys(("card", "travel", "weather"), EACH)
    assert "TextClassifier of minilm: 3 classes from 42 samples" in repr(joint)


def test_classes_are_told_apart(joint):
    texts = topics(8, seed=3)
    found = joint.evaluate(flat(texts), [name for name in texts for _ in range(8)])
    assert found.images == 24
    assert found.accuracy > 60  # a network of random weights; chance is 33
    assert acil.TextClassifier is TextClassifier


def test_forgotten_texts_were_never_learnt(joint):
    assert joint.forget(topics()["card"], "card").counts == {"card": EACH}
    assert joint.classes_ == ["travel", "weather"]
    same(joint, learnt("travel", "weather"))
    joint.forget(topics()["travel"][:4], "travel")
    part = learnt("weather")
    part.learn(topics()["travel"][4:], "travel")
    same(joint, part)
    with pytest.raises(InputError, match="nothing"):
        learnt("card").forget(topics()["card"], "card")


def test_merged_model_has_seen_both(joint):
    first, second = learnt("card"), learnt("weather", "travel")
    before = second.snapshot
    same(first.merge(second), joint)
    assert second.snapshot is before
    copies = learnt("card"), learnt("card")
    assert copies[0].merge(copies[1]).counts_ == {"card": 2 * EACH}  # made apart: salts differ


def test_models_of_a_common_past_are_not_merged(tmp_path):
    learnt("card").save(tmp_path / "m.acil")
    one, other = TextClassifier.load(tmp_path / "m.acil"), TextClassifier.load(tmp_path / "m.acil")
    with pytest.raises(InputError, match="both models"):
        one.merge(other)


def test_saved_model_goes_on_as_if_never_saved(joint, tmp_path):
    learnt("card").save(tmp_path / "m.acil")
    again = TextClassifier.load(tmp_path / "m.acil")
    for name in ("weather", "travel"):
        again.learn(topics()[name], name)
    same(again, joint)
    assert load(tmp_path / "m.acil").classes_.tolist() == ["card"]
    header = describe(tmp_path / "m.acil")
    assert (header["encoder"], header["images"]["source"]) == ("text", "minilm")
    assert header["backbone"] == tiny_encoder(name="minilm").identity
    joint.save(tmp_path / "small.acil", inference=True)
    small = TextClassifier.load(tmp_path / "small.acil")
    texts = topics(4, seed=2)["card"]
    assert small.predict(texts) == joint.predict(texts, None)


def test_a_file_says_itself_whether_it_is_of_texts_or_of_images(joint, tmp_path):
    joint.save(tmp_path / "t.acil")
    of_images = ImageClassifier(network())
    of_images.learn(draw(tmp_path / "pictures", 3))
    of_images.save(tmp_path / "i.acil")
    opened = (
        load_classifier(tmp_path / "t.acil"),
        load_classifier(tmp_path / "i.acil", backbone=network()),
    )
    assert [type(model) for model in opened] == [TextClassifier, ImageClassifier]
    assert type(reader_of(tmp_path / "t.acil")) is TextClassifier
    with pytest.raises(InputError, match="TextClassifier"):
        ImageClassifier.load(tmp_path / "t.acil")
    with pytest.raises(InputError, match="no model of texts"):
        TextClassifier.load(tmp_path / "i.acil")
    with pytest.raises(InputError, match="another network"):
        joint.merge(ImageClassifier.load(tmp_path / "i.acil", backbone=network()))


def test_another_network_is_refused_and_changes_nothing(joint, tmp_path):
    joint.save(tmp_path / "m.acil")
    other = tiny_encoder(seed=1, name="other")
    with pytest.raises(InputError, match="weights"):
        TextClassifier.load(tmp_path / "m.acil", backbone=other)
    file = ModelFile(tmp_path / "m.acil", backbone=other)
    before = (tmp_path / "m.acil").read_bytes()
    with pytest.raises(InputError, match="another network"):
        file.learn(["a new text"], "card")
    assert (tmp_path / "m.acil").read_bytes() == before
    with pytest.raises(InputError, match="TextEncoder"):
        TextClassifier(3)


def test_a_call_that_comes_again_is_left_out_in_any_order_and_under_any_class(joint, tmp_path):
    before, texts = joint.snapshot, flat(topics())
    report = joint.learn([f" {text} " for text in texts[::-1]], "card")
    assert (report.counts, len(report.repeated), report.totals) == ({}, 3 * EACH, before.totals)
    assert joint.snapshot is before
    # Parts of a call, and calls of few texts, are not known.
    assert joint.learn(texts[1:], "card").counts == {"card": 3 * EACH - 1}
    few = texts[: LEAST_TRACKED - 1]
    for _ in range(2):
        assert joint.learn(few, "card").counts == {"card": len(few)}
    joint.save(tmp_path / "m.acil")
    again = TextClassifier.load(tmp_path / "m.acil")
    assert len(again.learn(texts, "card").repeated) == len(texts)
    untracked = TextClassifier.load(tmp_path / "m.acil", track=False)
    assert untracked.learn(texts, "card").counts == {"card": len(texts)}
    assert not untracked.snapshot.tracker.active


def test_a_file_has_one_digest_of_a_call_and_none_of_a_text(joint, tmp_path):
    joint.learn(["just one more"], "card")
    joint.learn(["few"] * 20 + ["different"], "card")
    joint.save(tmp_path / "m.acil")
    (group,) = describe(tmp_path / "m.acil")["images"]["tracked"]
    assert len(group["hashes"]) == 1
    content = (tmp_path / "m.acil").read_bytes()
    for text in ("just one more", topics()["card"][0]):
        digest = hashlib.blake2b(text.encode(), digest_size=32).hexdigest()
        salted = hashlib.blake2b(digest.encode(), key=bytes.fromhex(group["salt"]), digest_size=16)
        assert not any(found.encode() in content for found in (text, digest, salted.hexdigest()))


def test_what_was_forgotten_may_be_learnt_again(joint):
    texts, names = flat(topics()), [name for name in TOPICS for _ in range(EACH)]
    joint.learn(["something else"], "else")
    joint.forget(texts, names)
    assert len(joint.snapshot.tracker) == 0
    assert sum(joint.learn(texts, names).counts.values()) == len(texts)


def test_renamed_classes_leave_calls_known(joint):
    texts = flat(topics())
    joint.rename_classes({"card": "bank"})
    assert len(joint.learn(texts, "bank").repeated) == len(texts)


def test_a_tracker_of_calls_survives_its_file():
    tracker = CallTracker.new().with_added([*map(str, range(12))], ["a"] * 12)
    again = CallTracker.from_list(json.loads(json.dumps(tracker.to_list())))
    assert again == tracker
    assert again.renamed({"a": "b"}) == tracker
    assert type(tracker.merged(CallTracker.new())) is CallTracker


def test_duplicates_count_and_are_told_and_so_are_contradictions():
    model = TextClassifier(expansion_size=None)
    report = model.learn(["rain", "rain ", "snow", "flight"], ["a", "a", "a", "b"])
    assert (report.duplicates, report.contradictions, report.totals) == (("rain",), (), {"a": 3, "b": 1})
    report = model.learn(["cafe\u0301 rain", "caf\xe9 rain", "sun"], ["a", "b", "b"])
    assert len(report.duplicates) == len(report.contradictions) == 1
    assert report.to_dict()["contradictions"] == report.contradictions
    # Else learning in two calls would give another model.
    apart = TextClassifier(expansion_size=None)
    for text, name in (("rain", "a"), ("rain", "a"), ("snow", "a"), ("flight", "b")):
        apart.learn([text], name)
    apart.learn(["caf\xe9 rain"], "a")
    apart.learn(["caf\xe9 rain", "sun"], "b")
    same(model, apart)


def test_tables_and_folders_are_learnt_as_lists_are(joint, tmp_path, caplog):
    table = tmp_path / "t.csv"
    rows = [f"{name},{text}" for name, texts in topics().items() for text in texts]
    table.write_text("\n".join(["label,text", *rows]))
    model = TextClassifier(expansion_size=64)
    with caplog.at_level("INFO", logger="acil"):
        model.learn(table)
    assert "42 texts from column 'text', labels from column 'label'" in caplog.text
    same(model, joint)
    assert model.evaluate(table).images == 42
    table.write_text("\n".join(["label,text", *rows, "card,"]))
    other = TextClassifier(expansion_size=64)
    with pytest.raises(InputError, match="Line 44"):
        other.learn(table)
    with pytest.raises(NotFittedError):
        other.predict(["a"])
    assert other.learn(table, skip_bad=True).skipped == (
        "Line 44: it is empty, or has no character that can be seen.",
    )
    assert len(other.evaluate(table, skip_bad=True).skipped) == 1
    with pytest.raises(InputError, match="labels"):
        other.learn(table, "card", skip_bad=True)


@pytest.mark.parametrize(
    ("texts", "labels", "message"),
    [
        ([], "a", "no texts"),
        (["a", " "], "a", r"1 of 2 texts cannot be used; nothing was changed. Text 2: it is empty"),
        (["a", 3], "a", "Text 2: A text must be a str, got int"),
        (["a", None], "a", "got NoneType"),
        (["a\ud800"], "a", "surrogates"),
        (["a"], "unknown", "is what predictions call"),
        (["a"], "left\u200fright", "cannot be printed"),
        (["a"], "a\nb", "cannot be printed"),
        (["a", "b"], ["a"], "2 texts but 1 labels"),
        (["a"], None, "needs labels"),
        (["a"], [1.5], "not text or a whole number"),
        ("no such file.csv", None, "There is no file"),
    ],
)
def test_bad_input_is_told_and_changes_nothing(joint, texts, labels, message):
    before = joint.snapshot
    with pytest.raises(InputError, match=message):
        joint.learn(texts, labels)
    assert joint.snapshot is before


def test_one_text_is_no_list_and_bad_texts_may_be_left_out(joint):
    with pytest.raises(InputError, match="list"):
        joint.predict("my card")
    found = joint.classify(["my card", "\0", "the rain"], skip_bad=True)
    assert [bool(answer.error) for answer in found] == [False, True, False]
    assert found[0].to_dict()["text"] == "my card"
    assert found[1].to_dict()["label"] == ""
    assert joint.learn(["my card", ""], "card", skip_bad=True).skipped == (
        "Text 2: it is empty, or has no character that can be seen.",
    )


def test_long_texts_are_cut_and_the_count_is_told(joint, caplog):
    with caplog.at_level("WARNING", logger="acil"):
        joint.predict(["rain " * 100, "snow", "sun " * 13])
    assert "2 of 3 texts have more than the 12 tokens" in caplog.text


def test_a_text_of_ten_million_characters_is_a_text(joint):
    long = "rain " * 2_000_000
    assert joint.predict([long], None) == joint.predict([long[:60]], None)


def test_classes_by_number_become_their_names(joint):
    joint.learn(["a 1", "b 1"], [7, np.str_("card")])
    assert joint.counts_["7"] == 1


def test_a_file_of_features_is_learnt_by_the_same_model(joint, tmp_path):
    samples = joint.prepare(topics(5, seed=9)["card"], "card")
    write_features(tmp_path / "f.npz", samples)
    again = read_features(tmp_path / "f.npz")
    assert joint.learn(again).counts == {"card": 5}
    of_images = ImageClassifier(network()).prepare([np.zeros((8, 8, 3), np.uint8)], "card")
    with pytest.raises(InputError, match="features of images"):
        joint.learn(of_images)


def test_model_file_makes_changes_undoes_and_writes_receipts(tmp_path):
    path = tmp_path / "desk.acil"
    file = ModelFile(path, new=lambda: TextClassifier(expansion_size=32))
    for name in ("card", "travel"):
        assert file.learn(topics()[name], name).report.counts == {name: EACH}
    assert isinstance(file.read(), TextClassifier)
    change = file.forget(topics()["card"][:3], "card")
    assert change.receipt is not None
    assert change.receipt[1]["forgotten_samples"] == 3
    assert file.read().counts_ == {"card": EACH - 3, "travel": EACH}
    file.undo()
    assert file.read().counts_["card"] == EACH
    file.undo()
    assert file.read().counts_ == {"card": EACH}
    assert all(check.ok for check in verify(path))
    assert audit(load(path)).recovered >= 0
    other = tmp_path / "other.acil"
    learnt("weather", width=32).save(other)
    merged = ModelFile(tmp_path / "merged.acil").merge([path, other])
    assert merged.after.totals == {"card": EACH, "weather": EACH}


def test_private_release_keeps_no_digest_of_a_call(joint, tmp_path):
    joint = jointly(clip_norm=1.0, min_class_samples=5)
    release = joint.release(8.0, 1e-6)
    assert release.images_ == {"source": "minilm", "tracked": []}
    acil.save(release, tmp_path / "r.acil")
    opened = load_classifier(tmp_path / "r.acil")
    assert isinstance(opened, TextClassifier)
    assert {*opened.predict(topics(3)["card"])} <= {*joint.classes_, "unknown"}
    assert describe(tmp_path / "r.acil")["encoder"] == "text"
