"""The HTTP interface: predict, teach, forget, describe."""

import dataclasses
import re
import threading
from concurrent.futures import Future
from urllib.parse import quote

import numpy as np
import pytest
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families

from acil import ImageClassifier
from acil.core.files import describe, load, locked
from acil.core.files.reading import cannot_read
from acil.errors import ModelFileError
from acil.growing import modelfile
from acil.growing.history import kept_states
from acil.serve.api import PAGES
from acil.serve.uploads import Item, shown_name
from support.pictures import draw, network
from support.serving import TOKEN, client, encoded, images_of, learn, sent, wait_until

#: Scores of a batch and of a single row go through other matrix products.
SCORES = 1e-9


def uploads_of(name, number):
    return [Item(f"{i}.png", image) for i, image in enumerate(images_of(name, number))]


def test_answers_are_those_of_the_library(taught):
    images = [image for name in ("red", "blue", "green") for image in images_of(name, 2, seed=1)]
    answer = taught.predict(images, params={"top": 2}).json()
    assert answer["revision"] == taught.get("/model").json()["revision"]
    assert [p["label"] for p in answer["predictions"][:4]] == ["red", "red", "blue", "blue"]
    model = ImageClassifier.load(taught.service.settings.model)
    for one, expected in zip(answer["predictions"], model.classify(images, top=2), strict=True):
        assert (one["label"], one["unknown"]) == (expected.label, expected.unknown)
        assert one["novelty"] == pytest.approx(expected.novelty, rel=SCORES)
        assert [entry["label"] for entry in one["top"]] == [label for label, _ in expected.top]
        shares = [entry["probability"] for entry in one["top"]]
        np.testing.assert_allclose(shares, [share for _, share in expected.top], rtol=SCORES)
        assert sum(shares) == pytest.approx(1)


def test_strange_image_is_unknown_unless_told_otherwise(taught):
    image = images_of("green", 1)
    found = taught.predict(image).json()["predictions"][0]
    assert found["unknown"]
    assert found["label"] == "unknown"
    found = taught.predict(image, params={"unknown_above": 0}).json()["predictions"][0]
    assert found["label"] in ("red", "blue")


def test_each_change_is_on_the_disk_before_it_is_answered(taught):
    """And forgetting gives the model that never learnt."""
    path, image = taught.service.settings.model, images_of("red", 1, seed=3)
    before, weights = taught.predict(image).json(), load(path).coef_
    report = taught.teach("green", images_of("green", 4)).json()
    assert report["totals"] == {"blue": 5, "green": 4, "red": 5}
    assert report["class"] == "green"
    assert describe(path)["n_samples"] == 14
    content, refused = path.read_bytes(), taught.forget("blue", images_of("green", 4))
    assert refused.status_code == 422
    assert "learnt as another class" in refused.text
    assert path.read_bytes() == content
    assert taught.get("/model").json()["revision"] != before["revision"]
    report = taught.forget("green", images_of("green", 4)).json()
    assert report["totals"] == {"blue": 5, "red": 5}
    assert describe(path)["classes"] == ["blue", "red"]
    after = taught.predict(image).json()["predictions"][0]
    for one, other in zip(before["predictions"][0]["top"], after["top"], strict=True):
        assert one["label"] == other["label"]
        # What was forgotten leaves the calibration only approximately.
        assert one["probability"] == pytest.approx(other["probability"], abs=1e-3)
    scale = np.abs(weights).max()
    np.testing.assert_allclose(load(path).coef_, weights, atol=SCORES * scale, rtol=0)


def test_last_changes_are_taken_back(taught):
    path = taught.service.settings.model
    states = [taught.get("/model").json()]
    image = images_of("red", 1, seed=1)
    answer = taught.predict(image).json()
    for name in ("green", "white"):
        taught.teach(name, images_of(name, 2))
        states.append(taught.get("/model").json())
    taught.forget("white", images_of("white", 2))
    for before in reversed(states):
        found = taught.post("/undo").json()
        for key in ("revision", "classes", "undo_left"):
            assert found[key] == before[key]
        assert describe(path)["n_samples"] == before["images"]
    assert taught.predict(image).json() == answer
    assert taught.teach("green", images_of("green", 2)).json()["images"] == 2
    while taught.get("/model").json()["undo_left"]:
        assert taught.post("/undo").status_code == 200
    refused = taught.post("/undo")
    assert refused.status_code == 422
    assert "nothing to undo" in refused.json()["detail"]
    assert str(path) not in refused.text


def test_a_class_gets_another_name_and_nothing_else_changes(settings, place):
    with client(settings(held_out=place / "held-out")) as served:
        for name in ("red", "blue"):
            served.teach(name, images_of(name, 5))
        image, before = images_of("red", 1, seed=1), served.get("/model").json()
        answer = served.predict(image).json()["predictions"][0]
        model = served.post("/classes/red/rename", params={"to": "carmine 9"}).json()
        assert model["classes"] == [{"name": "blue", "images": 5}, {"name": "carmine 9", "images": 5}]
        assert describe(served.service.settings.model)["classes"] == ["blue", "carmine 9"]
        now = served.predict(image).json()["predictions"][0]
        assert now["label"] == "carmine 9"
        assert now["novelty"] == pytest.approx(answer["novelty"], rel=SCORES)
        # The folder of held-out images is called as before, and measured as before.
        assert model["held_out"]["per_class"] == {"blue": 100.0, "carmine 9": 100.0}
        last = model["history"][-1]
        assert (last["action"], last["class"], last["to"], last["images"]) == (
            "rename",
            "red",
            "carmine 9",
            5,
        )
        assert last["held_out"]["kept"]["images"] == 8
        served.post("/classes/carmine 9/rename", params={"to": "carmine 10"})
        served.teach("green", images_of("green", 2))
        held_out = served.get("/model").json()["held_out"]["per_class"]
        assert list(held_out) == ["blue", "carmine 10", "green"]
        for _ in range(3):
            model = served.post("/undo").json()
        assert {**model, "undo_left": None} == {**before, "undo_left": None}
        # An image is still known as what it was learnt as.
        served.post("/classes/red/rename", params={"to": "rose"})
        assert served.forget("rose", images_of("red", 5)[:1]).json()["totals"]["rose"] == 4


def test_a_class_becomes_part_of_another_exactly(taught, settings, tmp_path):
    taught.teach("crimson", images_of("red", 3, seed=4))
    model = taught.post("/classes/crimson/merge", params={"to": "red"}).json()
    assert model["classes"] == [{"name": "blue", "images": 5}, {"name": "red", "images": 8}]
    with client(dataclasses.replace(settings(), model=tmp_path / "other.acil")) as other:
        other.teach("red", images_of("red", 5))
        other.teach("blue", images_of("blue", 5))
        other.teach("red", images_of("red", 3, seed=4))
        one, same = (load(served.service.settings.model).coef_ for served in (taught, other))
    np.testing.assert_allclose(one, same, atol=SCORES * np.abs(same).max(), rtol=0)


@pytest.mark.parametrize(
    ("address", "to", "told"),
    [
        ("red/rename", "blue", "Several classes would be called blue"),
        ("pink/rename", "rose", "This model has no class pink"),
        ("pink/merge", "red", "This model has no class pink"),
        ("red/rename", "a/b", "reads like a path"),
        ("red/rename", "\u202ered", "cannot be printed"),
        ("red/merge", "a\0b", "cannot be printed"),
        ("red/merge", "unknown", "what predictions call"),
        ("red/rename", "", "is empty"),
        ("a%2Fb/merge", "c", "The class name 'a/b' reads like a path"),
    ],
)
def test_names_that_cannot_be_are_refused_and_nothing_changes(taught, address, to, told):
    before, content = taught.get("/model").json(), taught.service.settings.model.read_bytes()
    refused = taught.post(f"/classes/{address}", params={"to": to})
    assert refused.status_code == 422
    assert told in refused.json()["detail"]
    assert taught.get("/model").json() == before
    assert taught.service.settings.model.read_bytes() == content


def test_what_to_teach_next_is_what_the_library_says(taught):
    learnt = images_of("red", 2)
    images = [*images_of("red", 3, seed=1), *images_of("green", 2, seed=1), *learnt]
    images += [images[0]]
    found = taught.post("/suggest", files=sent(images), params={"number": 3}).json()
    model = ImageClassifier.load(taught.service.settings.model)
    expected = model.suggest(images)
    places = [int(one.image.removeprefix("image ")) - 1 for one in expected]
    assert [one["place"] for one in found["suggestions"]] == places[:3]
    assert [one["image"] for one in found["suggestions"]] == [f"{place}.png" for place in places[:3]]
    assert found["known"] == 3, "two were learnt, one comes twice"
    for one, other in zip(found["suggestions"], expected, strict=False):
        assert one["closeness"] == pytest.approx(other.closeness, rel=SCORES)
        assert one["top"][0]["label"] == other.top[0][0]
    found = post(taught, "/suggest", {"a.txt": b"x", "b.png": images[0]}).json()
    assert [one["image"] for one in found["refused"]] == ["a.txt"]
    assert [one["place"] for one in found["suggestions"]] == [1]
    assert post(taught, "/suggest", {"a.txt": b"x"}).status_code == 422
    assert post(taught, "/suggest", {"red.png": learnt[0]}).json()["suggestions"] == []


def test_a_change_for_the_worse_is_refused_with_what_would_be_worse(settings, place):
    with client(settings(held_out=place / "held-out", max_drop=0.5)) as served:
        for name in ("red", "blue"):
            served.teach(name, images_of(name, 5))
        # Green has not been known before, so it cannot get worse.
        assert served.teach("green", images_of("green", 5)).status_code == 200
        served.post("/classes/green/rename", params={"to": "leaf"})
        before, content = served.get("/model").json(), served.service.settings.model.read_bytes()
        assert before["max_drop"] == 0.5
        # The same images under another name, which then take those of the first.
        refused = served.teach("grass", images_of("green", 3, seed=5))
        assert refused.status_code == 409
        assert "\n" not in refused.json()["detail"]
        assert "accuracy would fall from 100.00 to " in refused.json()["detail"]
        found = refused.json()["comparison"]
        assert (found["samples"], found["before"]) == (12, 100)
        # Also of a class that has another name by now.
        assert found["per_class"]["leaf"]["after"] < 100
        assert served.get("/model").json() == before
        assert served.service.settings.model.read_bytes() == content
        assert served.forget("leaf", images_of("green", 5)).status_code == 200


def test_who_may_not_teach_cannot_rename_nor_ask_what_has_been_taught(settings):
    with client(settings(token=TOKEN)) as served:
        served.headers["authorization"] = f"Bearer {TOKEN}"
        assert served.post("/suggest", files=sent(images_of("red", 1))).status_code == 409
        assert served.post("/classes/red/rename", params={"to": "rose"}).status_code == 409
        served.teach("red", images_of("red", 2))
        del served.headers["authorization"]
        assert served.post("/suggest", files=sent(images_of("red", 1))).status_code == 401
        for action in ("rename", "merge"):
            assert served.post(f"/classes/red/{action}", params={"to": "rose"}).status_code == 401


def test_undoing_the_change_of_another_process_leaves_the_history_of_the_page(taught):
    path = taught.service.settings.model
    taught.teach("green", images_of("green", 2))
    history = taught.get("/model").json()["history"]
    assert history[-1]["class"] == "green"
    other = ImageClassifier.load(path)
    other.learn(other.prepare(images_of("white", 2), "white"))
    other.save(path, undo=True)
    assert taught.post("/undo").json()["history"] == history
    assert taught.post("/undo").json()["history"] == history[:-1]


def test_change_right_behind_an_undo_is_the_last_of_the_history(taught, monkeypatch):
    service, futures = taught.service, []

    class Busy:
        def submit(self, work, *given):
            futures.append(Future())
            futures[0].set_result(work(*given))
            service._changed("learn", "white", uploads_of("white", 2), {})
            return futures[0]

    with monkeypatch.context() as patched:
        patched.setattr(service, "_changes", Busy())
        assert taught.post("/undo").status_code == 200
    assert [entry["class"] for entry in taught.get("/model").json()["history"]] == ["red", "white"]


def test_description_is_of_one_state_whatever_is_taught_meanwhile(taught, monkeypatch):
    store, before = taught.service.store, taught.get("/model").json()
    samples = store.reader.prepare(images_of("green", 2), "green")

    def measured(published):
        learn(store, samples)

    monkeypatch.setattr(taught.service, "_measure", measured)
    found = taught.get("/model").json()
    assert (found["revision"], found["classes"]) == (before["revision"], before["classes"])
    assert len(store.published.snapshot.totals) == 3


def test_image_is_learnt_once_unless_it_is_not_tracked(taught, settings):
    before = taught.get("/model").json()
    again = taught.teach("red", images_of("red", 5)).json()
    assert (again["images"], again["repeated"], again["totals"]) == (0, 5, {"blue": 5, "red": 5})
    wrong = taught.teach("blue", images_of("red", 2)).json()
    assert (wrong["images"], wrong["repeated"], wrong["misplaced"], again["misplaced"]) == (0, 2, 2, 0)
    assert taught.get("/model").json() == before
    more = taught.teach("red", images_of("red", 6)).json()
    assert (more["images"], more["repeated"], more["totals"]["red"]) == (1, 5, 6)
    path = taught.service.settings.model.with_name("other.acil")
    with client(dataclasses.replace(settings(track=False), model=path)) as untracked:
        for _ in range(2):
            assert untracked.teach("red", images_of("red", 2)).json()["images"] == 2


def test_server_begins_without_a_model_and_goes_on_after_a_restart(settings):
    with client(settings()) as empty:
        assert empty.get("/health").json() == {"status": "ok", "ready": False, "fault": None}
        refused = empty.predict(images_of("red", 1))
        assert refused.status_code == 409
        assert "Teach a class first" in refused.json()["detail"]
        assert empty.forget("red", images_of("red", 1)).status_code == 409
        assert not empty.service.settings.model.exists()
        for name in ("red", "blue"):
            assert empty.teach(name, images_of(name, 3)).status_code == 200
        assert empty.get("/health").json()["ready"]
        before = empty.get("/model").json()
    with client(settings()) as again:
        after = again.get("/model").json()
        assert after["revision"] == before["revision"]
        assert after["classes"] == before["classes"]
        assert again.teach("green", images_of("green", 3)).status_code == 200


def test_inference_model_predicts_and_refuses_to_learn(taught, settings, tmp_path):
    path = tmp_path / "small.acil"
    ImageClassifier.load(taught.service.settings.model).save(path, inference=True)
    with client(type(settings())(path, taught.service.settings.backbone)) as small:
        assert small.predict(images_of("red", 1, seed=1)).json()["predictions"][0]["label"] == "red"
        assert not small.get("/model").json()["can_learn"]
        refused = small.teach("green", images_of("green", 2))
        assert refused.status_code == 409
        assert "can only predict" in refused.json()["detail"]


def test_token_guards_changes_but_not_predicting(settings):
    """Undoing is a change, too, and can be switched off."""
    with client(settings(token=TOKEN, undo=False)) as guarded:
        images, path = images_of("red", 2), guarded.service.settings.model
        for headers in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": f"Basic {TOKEN}"},
            {"Authorization": TOKEN},
            {"Authorization": "Bearer \xe9".encode("latin-1")},
        ):
            refused = guarded.teach("red", images, headers=headers)
            assert refused.status_code == 401
            assert "Authorization: Bearer TOKEN" in refused.json()["detail"]
            assert refused.headers["www-authenticate"] == "Bearer"
        assert not path.exists()
        right = {"Authorization": f"Bearer {TOKEN}"}
        assert guarded.teach("red", images, headers=right).status_code == 200
        assert guarded.forget("red", images[:1]).status_code == 401
        assert guarded.forget("red", images[:1], headers=right).status_code == 200
        assert guarded.post("/undo").status_code == 401
        assert guarded.post("/undo", headers=right).status_code == 422
        assert list(path.parent.glob(".*.undo")) == []
        assert guarded.predict(images).status_code == 200
        found = guarded.get("/model")
        assert TOKEN not in found.text
        assert (found.json()["protected"], found.json()["undo_left"]) == (True, 0)


def test_foreign_pages_and_names_are_refused(taught):
    images = images_of("green", 2)
    for headers, code in (
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Host": "evil.example"}, 421),
    ):
        assert taught.teach("green", images, headers=headers).status_code == code
    assert [entry["name"] for entry in taught.get("/model").json()["classes"]] == ["blue", "red"]
    own = {"Origin": str(taught.base_url).rstrip("/")}
    assert taught.teach("green", images, headers=own).status_code == 200


@pytest.mark.parametrize("seen", [True, False])
def test_change_of_another_process_is_served_and_kept(taught, place, seen):
    """Whether or not the server has noticed it before the next change."""
    path = taught.service.settings.model
    other = ImageClassifier.load(path)
    other.learn(place / "held-out" / "green", "green")
    other.save(path)
    if seen:
        wait_until(lambda: len(taught.get("/model").json()["classes"]) == 3)
    report = taught.teach("white", images_of("white", 3)).json()
    assert report["totals"] == {"blue": 5, "green": 4, "red": 5, "white": 3}
    assert describe(path)["classes"] == ["blue", "green", "red", "white"]


def test_server_and_other_processes_take_turns(taught):
    """Both change the file many times at once; nothing that either learnt is lost."""
    path, failures = taught.service.settings.model, []

    def learn():
        try:
            for image in images_of("green", 8):
                with locked(path):
                    other = ImageClassifier.load(path)
                    other.learn([image], "green")
                    other.save(path)
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=learn)
    thread.start()
    statuses = [taught.teach("white", [image]).status_code for image in images_of("white", 8)]
    thread.join()
    assert failures == []
    assert statuses == [200] * 8
    counts = dict(zip(describe(path)["classes"], describe(path)["counts"], strict=True))
    assert counts == {"blue": 5, "green": 8, "red": 5, "white": 8}
    wait_until(lambda: taught.get("/model").json()["images"] == 26)


def test_file_that_is_removed_or_damaged_is_told_and_predictions_go_on(taught):
    path = taught.service.settings.model
    content = path.read_bytes()
    path.unlink()
    refused = taught.teach("green", images_of("green", 2))
    assert refused.status_code == 503
    assert "removed" in refused.json()["detail"]
    path.write_bytes(content[:-10])
    assert taught.teach("green", images_of("green", 2)).status_code == 503
    assert taught.predict(images_of("red", 1)).status_code == 200
    path.write_bytes(content)
    assert taught.teach("green", images_of("green", 2)).status_code == 200


def test_a_model_that_is_gone_is_not_brought_back_by_undo(taught, settings):
    taught.service.settings.model.unlink()
    refused = taught.post("/undo")
    assert refused.status_code == 503
    assert "removed" in refused.json()["detail"]
    assert int(refused.headers["retry-after"]) > 0
    with client(settings()) as fresh:
        assert fresh.get("/model").json()["undo_left"] == 0
        assert fresh.post("/undo").status_code == 422


def test_a_file_of_another_network_is_no_fault_of_the_request_and_stays(taught, tmp_path):
    path = taught.service.settings.model
    other = ImageClassifier(network(seed=1))
    other.learn(draw(tmp_path / "drawn", 2))
    other.save(path)
    content = path.read_bytes()
    assert taught.teach("green", images_of("green", 2)).status_code == 503
    assert taught.post("/undo").status_code == 503
    assert path.read_bytes() == content


def test_a_damaged_state_does_not_replace_the_model(taught):
    path, before = taught.service.settings.model, taught.get("/model").json()
    content, state = path.read_bytes(), kept_states(path)[-1]
    kept = state.read_bytes()
    state.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))  # the header is whole
    assert taught.post("/undo").status_code == 503
    assert path.read_bytes() == content
    state.write_bytes(kept)
    assert taught.get("/model").json() == before
    assert taught.post("/undo").status_code == 200


def test_a_file_that_could_not_be_read_once_is_served_when_it_can(taught, monkeypatch):
    path = taught.service.settings.model

    def unreadable(*given, **options):
        raise cannot_read(path, PermissionError(13, "Permission denied")) from PermissionError(13)

    with monkeypatch.context() as patched:
        patched.setattr(modelfile, "load", unreadable)
        path.write_bytes(path.read_bytes())
        wait_until(lambda: taught.get("/health").json()["status"] == "degraded")
    wait_until(lambda: taught.get("/health").json()["status"] == "ok")


def test_failed_save_changes_nothing_and_is_logged(taught, monkeypatch, caplog):
    def full(self, path, **options):
        raise ModelFileError("Cannot write: no space left.")

    before, content = taught.get("/model").json(), taught.service.settings.model.read_bytes()
    monkeypatch.setattr(ImageClassifier, "save", full)
    assert taught.teach("green", images_of("green", 2)).status_code == 503
    assert taught.get("/model").json() == before
    assert taught.service.settings.model.read_bytes() == content
    assert "WARNING" in caplog.text
    assert "no space left" in caplog.text


def test_a_folder_that_may_not_be_written_is_no_fault_of_the_request(taught, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert taught.teach("green", images_of("green", 2)).status_code == 503
    assert taught.post("/undo").status_code == 503


def test_held_out_accuracy_before_and_after_a_new_class(settings, place):
    with client(settings(held_out=place / "held-out")) as served:
        assert served.get("/model").json()["held_out"]["accuracy"] is None
        for name in ("red", "blue"):
            served.teach(name, images_of(name, 5))
        assert served.get("/model").json()["held_out"] == {
            "accuracy": 100.0,
            "images": 8,
            "per_class": {"blue": 100.0, "red": 100.0},
        }
        found = served.teach("green", images_of("green", 5)).json()["held_out"]
        assert found["kept"] == {
            "accuracy_before": 100.0,
            "accuracy_after": 100.0,
            "images": 8,
            "lost": 0,
        }
        assert found["after"]["images"] == 12
        assert [e["class"] for e in served.get("/model").json()["history"]] == ["red", "blue", "green"]
        # Taught under another name, green is lost: the panel must not hide it.
        found = served.teach("grass", images_of("green", 3, seed=5)).json()["held_out"]
        assert found["kept"]["lost"] > 0
        assert found["kept"]["accuracy_after"] < 100


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("top=0", "top is '0'. Input should be greater than or equal to 1."),
        ("top=101", "top is '101'"),
        ("unknown_above=nan", "unknown_above is 'nan'"),
        ("top=x&unknown_above=-1", "unknown_above is '-1'. Input should be greater than"),
        (f"top={'x' * 5000}", "top is 'xxxx"),
    ],
)
def test_wrong_parameters_are_told_like_every_refusal(taught, query, told):
    refused = taught.predict(images_of("red", 1), params=query)
    assert refused.status_code == 422
    assert told in refused.json()["detail"]
    assert len(refused.content) < 500


def test_an_address_that_is_none_is_told(taught):
    refused = taught.post("/nowhere")
    assert refused.status_code == 404
    assert "nothing at this address" in refused.json()["detail"]


@pytest.mark.parametrize("path", ["a%2Fb", "a/b", "a%2Fb/forget", "a%2Fforget/forget"])
def test_a_slash_in_a_class_name_is_told_as_such(taught, path):
    refused = taught.post(f"/classes/{path}")
    assert refused.status_code == 422
    name = path.removesuffix("/forget").replace("%2F", "/")
    assert f"The class name '{name}' reads like a path" in refused.json()["detail"]


#: Files that nobody can use: before anything is decoded, and when it is.
BAD = {"notes.txt": b"hello", "cut.png": images_of("red", 1)[0][:-30], "empty.jpg": b""}


def post(served, path, files):
    given = [("images", (name, content, "image/png")) for name, content in files.items()]
    return served.post(path, files=given)


def mixed(name):
    """Return images with a bad file before and behind each."""
    good = {f"{name} {i}.png": image for i, image in enumerate(images_of(name, 2))}
    (first, one), (second, other) = good.items()
    notes, cut, empty = BAD.items()
    return good, dict([notes, (first, one), cut, (second, other), empty])


def test_prediction_of_good_files_does_not_depend_on_bad_ones(taught):
    good, files = mixed("red")
    expected = post(taught, "/predict", good).json()["predictions"]
    answer = post(taught, "/predict", files)
    assert answer.status_code == 200
    found = answer.json()["predictions"]
    assert [one["image"] for one in found] == list(files)
    assert [one for one in found if one["error"] is None] == expected
    for one in found:
        if one["image"] in BAD:
            assert one["error"].endswith(".")
            assert (one["label"], one["top"], one["novelty"], one["unknown"]) == ("", [], None, False)
    assert samples_of(taught.get("/metrics").text)["acil_images_total", "predict"] == 4


def test_teaching_learns_the_good_files_and_names_the_others(taught):
    good, files = mixed("green")
    report = post(taught, "/classes/green", files).json()
    assert (report["images"], report["totals"]["green"]) == (2, 2)
    assert [(one["place"], one["image"]) for one in report["refused"]] == [
        (0, "notes.txt"),
        (2, "cut.png"),
        (4, "empty.jpg"),
    ]
    # They are the images that the library learns.
    model = ImageClassifier.load(taught.service.settings.model)
    assert len(model.learn(list(good.values()), "green").repeated) == 2


def test_forgetting_does_all_or_nothing(taught):
    """Who asks to forget must not take a part for all of it."""
    content = taught.service.settings.model.read_bytes()
    _, files = mixed("red")
    refused = post(taught, "/classes/red/forget", files)
    assert refused.status_code == 422
    assert [one["image"] for one in refused.json()["refused"]] == list(BAD)
    strange = {"mine.png": images_of("red", 1)[0], "of others.png": images_of("red", 1, seed=5)[0]}
    refused = post(taught, "/classes/red/forget", strange)
    assert "never learnt (of others.png)" in refused.json()["detail"]
    assert taught.service.settings.model.read_bytes() == content


@pytest.mark.parametrize("path", ["/predict", "/classes/red", "/classes/red/forget"])
def test_files_of_which_none_can_be_used_are_an_error_that_names_each(taught, path):
    before = taught.get("/model").json()
    for name, content in BAD.items():
        refused = post(taught, path, {name: content})
        assert refused.status_code == 422
        assert refused.json()["detail"].startswith(f"{name}: ")
        assert [one["image"] for one in refused.json()["refused"]] == [name]
    cut = dict.fromkeys((f"{i}.png" for i in range(20)), BAD["cut.png"])
    for files in (BAD, cut):
        refused = post(taught, path, files)
        assert refused.status_code == 422
        assert [one["image"] for one in refused.json()["refused"]] == list(files)
        assert f"{len(files)} of {len(files)} images cannot be used" in refused.json()["detail"]
    assert refused.json()["detail"].endswith("And 15 more.")
    assert taught.get("/model").json() == before


def test_images_of_too_many_pixels_are_a_413_only_if_all_are(settings):
    with client(settings(max_pixels=150)) as served:
        small, large = images_of("red", 1)[0], encoded(Image.new("RGB", (20, 20)))
        served.teach("red", [small])
        refused = served.predict([large])
        assert (refused.status_code, refused.json()["refused"][0]["image"]) == (413, "0.png")
        assert served.predict([large, b"hello"]).status_code == 422
        found = served.predict([large, small]).json()["predictions"]
        assert "20 x 20 pixels" in found[0]["error"]
        assert found[1]["label"] == "red"
        # In all, which a client may send in parts: no file is to blame.
        refused = served.predict([small] * 9)
        assert refused.status_code == 413
        assert "refused" not in refused.json()


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("my photo (1).jpg", "my photo (1).jpg"),
        ("犬.png", "犬.png"),
        ("a/../b.png", "a/../b.png"),
        ("<b>.png", "<b>.png"),
        ("x" * 300, "x" * 99 + "…"),
        ("a\0\n\x1b[31m\x85\u202egnp.exe\ud800", "a���[31m��gnp.exe�"),
        ("", "image 7"),
        (" \t", "image 7"),
        (None, "image 7"),
    ],
)
def test_names_of_files_are_short_plain_text(name, shown):
    assert shown_name(name, 7) == shown


def test_names_of_files_come_back_in_answers_and_not_in_the_log(taught, caplog):
    with caplog.at_level("DEBUG"):
        found = post(taught, "/predict", {"secret<b>.png": images_of("red", 1)[0]}).json()
        post(taught, "/predict", {"secret.txt": b"x"})
        post(taught, "/classes/red", {"secret.png": images_of("red", 1, seed=8)[0], "secret.txt": b"x"})
    assert found["predictions"][0]["image"] == "secret<b>.png"
    logged = [one.getMessage() for one in caplog.records if one.name.startswith("acil")]
    assert len(logged) >= 3
    assert not any("secret" in line for line in logged)


@pytest.mark.parametrize("path", ["/", "/static/page.js", "/health", "/model", "/metrics"])
def test_heads_can_be_asked_for_alone(taught, path):
    answer, whole = taught.head(path), taught.get(path)
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-type"] == whole.headers["content-type"]


def test_a_method_that_is_none_of_an_address_is_told(taught):
    refused = taught.get("/predict")
    assert (refused.status_code, refused.headers["allow"]) == (405, "POST")
    assert "takes POST, not GET" in refused.json()["detail"]


def test_what_happens_to_the_file_is_logged_once(taught, caplog):
    store = taught.service.store
    with caplog.at_level("INFO", logger="acil"):
        taught.forget("red", images_of("red", 5)[:1])
        assert "forgot 1 image of 'red'" in caplog.text
        assert taught.teach("red", images_of("red", 5)[1:]).json()["images"] == 0
        assert caplog.text.count(", saved") == 1, "nothing was, the second time"
        content = store.path.read_bytes()
        store.path.unlink()
        # The server itself looks too, once a second.
        for _ in range(3):
            store.refresh()
        assert caplog.text.count("model file is gone") == 1
        store.path.write_bytes(content)
        wait_until(lambda: "reloaded" in caplog.text)
        store.path.unlink()
        store.refresh()
    assert caplog.text.count("model file is gone") == 2


def samples_of(text):
    """Return name and labels → value of everything in the text format of Prometheus."""
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_count_answers_and_images(taught):
    taught.predict(images_of("red", 2))
    taught.get("/nowhere")
    for method in ("BREW", "WHEN"):  # a client could invent any number of them
        taught.request(method, "/nowhere")
    answer = taught.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    found = samples_of(answer.text)
    assert found["acil_requests_total", "/predict", "200", "POST"] == 1
    assert found["acil_requests_total", "404", "GET", "other"] == 1
    assert found["acil_requests_total", "404", "other", "other"] == 2
    assert found["acil_images_total", "learn"] == 10
    assert found["acil_images_total", "predict"] == 2
    assert found["acil_images_total", "forget"] == 0
    assert found["acil_classes",] == 2
    assert found["acil_model_images",] == 10
    assert found["acil_batches_total",] >= 1
    assert found["acil_batch_images_total",] == 2
    assert found["acil_request_seconds_bucket", "+Inf", "/predict"] == 1
    assert found["acil_request_seconds_count", "/predict"] == 1
    names = {name for name, *_ in found}
    assert len(names) == 9
    assert all(name.startswith("acil_") for name in names)


def test_everything_needed_to_call_it_is_in_the_description(taught):
    found = taught.get("/openapi.json").json()
    assert set(found["paths"]) == {
        "/predict",
        "/classes/{name}",
        "/classes/{name}/forget",
        "/classes/{name}/rename",
        "/classes/{name}/merge",
        "/suggest",
        "/undo",
        "/model",
        "/health",
        "/metrics",
    }
    body = found["paths"]["/predict"]["post"]["requestBody"]["content"]["multipart/form-data"]
    assert "images" in body["schema"]["properties"]


def test_pages_load_nothing_from_elsewhere(taught):
    for path in PAGES:
        found = taught.get(path)
        assert found.status_code == 200
        assert "default-src 'none'" in found.headers["content-security-policy"]
        assert "unsafe" not in found.headers["content-security-policy"]
        assert found.headers["x-content-type-options"] == "nosniff"
        if not path.endswith(".svg"):
            assert not re.findall(r"(?:https?:)?//[\w.-]+\.\w+", found.text)
            assert not re.findall(r"innerHTML|eval\(|style=|onclick=", found.text)


def test_ordinary_names_arrive_unchanged(taught):
    names = ["gas pump", "Grüße", "犬", "50 %", "forget", "a.b", "<b>&amp;", "x?y#z", "$HOME", "x" * 200]
    for name in names:
        report = taught.teach(quote(name, safe=""), images_of("green", 2)).json()
        assert (report["class"], report["totals"][name]) == (name, 2)
        assert name in [entry["name"] for entry in taught.get("/model").json()["classes"]]
        assert taught.forget(quote(name, safe=""), images_of("green", 2)).json()["class"] == name
