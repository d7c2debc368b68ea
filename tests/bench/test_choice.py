"""Choosing a recipe inside the base classes."""

import fcntl
import json
import math

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from typer.testing import CliRunner

from acil.bench import choice as choice_module
from acil.bench.choice import REFERENCE, Search, curves, make_split, table
from acil.bench.datasets import load
from acil.cli import app
from acil.core.classifier import ACILClassifier
from acil.core.files.writing import locked
from acil.errors import InputError, SingularMatrixError
from support.pictures import COLOURS, draw

SHORT = {
    "dataset": "digits",
    "changes": {"training.epochs": 1, "expansion_size": 60},
    "candidates": {"rotation": {"training.auxiliary.copies": 1}, "wide": {"expansion_size": 90}},
    "splits": (0, 2),
    "gammas": (0.01, 0.1),
    "base": 6,
    "device": "cpu",
}


def labels_of(n_classes, each):
    return torch.arange(n_classes).repeat_interleave(each)


@pytest.mark.parametrize(("number", "base"), [(0, 25), (1, 25), (2, 40), (3, 40), (4, 25)])
def test_number_alone_decides_a_base_and_five_phases_of_all_other_classes(number, base):
    split = make_split(labels_of(50, 20), 50, number)
    step = (50 - base) // 5
    assert split.ends == (base, *range(base + step, 51, step))
    assert torch.equal(torch.bincount(split.labels), torch.full((50,), 20))
    assert torch.equal(torch.bincount(split.labels[split.held_out]), torch.full((50,), 2))
    again, other = (make_split(labels_of(50, 20), 50, n) for n in (number, number + 4))
    assert torch.equal(split.labels, again.labels)
    assert torch.equal(split.held_out, again.held_out)
    assert not torch.equal(split.labels, other.labels)


def test_splits_can_have_a_base_of_any_size(tmp_path):
    split = make_split(labels_of(50, 20), 50, 0, 10)
    assert split.ends == (10, 18, 26, 34, 42, 50)
    usual = Search(tmp_path, **SHORT)
    small = Search(tmp_path, **SHORT, split_base=2)
    assert small.split(0).ends[0] == 2
    assert not set(usual._networks()) & set(small._networks())  # neither finds the other's networks
    with pytest.raises(InputError, match="from 2 to 5"):
        Search(tmp_path, **SHORT, split_base=6)


def test_too_few_classes_or_images_are_refused():
    with pytest.raises(InputError, match="too few"):
        make_split(labels_of(2, 9), 2, 0)
    with pytest.raises(InputError, match="training images"):
        make_split(labels_of(8, 1), 8, 0)


@pytest.mark.parametrize("views", [1, 2])
def test_curve_is_that_of_ridge_regression_on_all_classes_so_far(views):
    split = make_split(labels_of(8, 30), 8, 0)
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(8, 5, generator=generator)
    features = centres[split.labels] + 0.8 * torch.randn(240, 5, generator=generator)
    rows = [features, features.flip(1)][:views]
    found = curves(features, rows, split, ACILClassifier(scores="ridge", expansion_size=None), (0.1,))[
        "0.1"
    ]
    for end, accuracy in zip(split.ends, found, strict=True):
        known = split.labels < end
        X = torch.cat([view[known & ~split.held_out] for view in rows]).double().numpy()
        y = split.labels[known & ~split.held_out].repeat(views)
        gamma = 0.1 * np.square(X).sum() / 5
        ridge = Ridge(alpha=gamma, fit_intercept=False).fit(X, np.eye(end)[y])
        judged = known & split.held_out
        guessed = ridge.predict(features[judged].double().numpy()).argmax(1)
        assert accuracy == pytest.approx(
            100 * np.mean(guessed == split.labels[judged].numpy()), abs=1e-3
        )
    assert 20 < found[-1] < 100


def test_network_sees_only_images_of_the_splits_base_that_are_not_held_out(tmp_path, monkeypatch):
    seen = []

    def spy(network, images, labels, settings, **options):
        seen.append((images, labels, network.n_classes))

    monkeypatch.setattr(choice_module, "train", spy)
    search = Search(tmp_path, **SHORT | {"candidates": {}, "splits": (0,)})
    search.run()
    ((images, _, n_classes),) = seen
    split = make_split(search.labels, 6, 0)
    allowed = (split.labels < 3) & ~split.held_out
    assert n_classes == 3
    assert len(images) == int(allowed.sum())
    assert torch.equal(images, search.images.pixels()[allowed])
    digits = load("digits")
    assert len(search.images) == int((digits.train_labels < 6).sum())


def test_neither_test_images_nor_new_classes_move_a_record(tmp_path, monkeypatch):
    Search(tmp_path / "a", **SHORT).run()

    def poisoned(*arguments, **options):
        data = load(*arguments, **options)
        data.test.pixels().fill_(255)
        data.train.pixels()[data.train_labels >= 6] = 7
        return data

    monkeypatch.setattr(choice_module, "load", poisoned)
    Search(tmp_path / "b", **SHORT).run()
    assert accuracies(tmp_path / "a") == accuracies(tmp_path / "b")


def accuracies(folder):
    found = [json.loads(line) for line in (folder / "choice.jsonl").read_text().splitlines()]
    return sorted(
        (record["candidate"], record["split"], json.dumps(record["accuracy"]))
        for record in found
        if record["kind"] == "choice"
    )


def test_search_that_is_stopped_goes_on_and_trains_nothing_twice(tmp_path, monkeypatch):
    Search(tmp_path / "whole", **SHORT).run()
    train, trained = choice_module.train, []

    def counted(*arguments, **options):
        if len(trained) == 2:
            raise KeyboardInterrupt
        trained.append(1)
        train(*arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(choice_module, "train", counted)
        with pytest.raises(KeyboardInterrupt):
            Search(tmp_path / "stopped", **SHORT).run()
    assert 0 < len(accuracies(tmp_path / "stopped")) < len(accuracies(tmp_path / "whole"))
    Search(tmp_path / "stopped", **SHORT).run()
    assert accuracies(tmp_path / "stopped") == accuracies(tmp_path / "whole")
    monkeypatch.setattr(choice_module, "train", None)
    Search(tmp_path / "stopped", **SHORT).run()
    assert len(accuracies(tmp_path / "stopped")) == 6
    # "wide" has the reference's networks.
    assert len(list((tmp_path / "whole" / "networks").iterdir())) == 4


def test_candidates_that_fail_stop_no_other_and_are_named_behind_the_table(tmp_path, monkeypatch):
    def refusing(features, rows, split, head, gammas):
        if head.expansion_size == 90:
            raise SingularMatrixError("No weights.")
        return curves(features, rows, split, head, gammas)

    monkeypatch.setattr(choice_module, "curves", refusing)
    arguments = ["bench", "choose", "--base", "6", "--splits", "0", "--out", str(tmp_path / "choice")]
    arguments += ["--set", "training.epochs=1", "--try", "big training.learning_rate=1e9"]
    arguments += ["--try", "wide expansion_size=90", "--try", "narrow expansion_size=9"]
    result = CliRunner().invoke(app, [*arguments, "--try", "longer training.epochs=2"])
    assert result.exit_code == 1
    names = [line.split("|")[1].strip() for line in result.stdout.splitlines()]
    assert names[2:] == [REFERENCE, "narrow", "longer"]
    assert "[big, split 0] Training diverged" in result.stderr
    assert "[wide, split 0] No weights." in result.stderr


def test_taps_that_do_not_exist_are_refused_before_anything_is_trained(tmp_path):
    arguments = ["bench", "choose", "--out", str(tmp_path / "choice"), "--try", "x features.taps=nope"]
    result = CliRunner().invoke(app, arguments)
    assert "has no tap 'nope'" in result.stderr
    assert not (tmp_path / "choice").exists()


def test_images_of_a_folder_are_looked_at_in_the_size_asked_for(tmp_path):
    for split in ("train", "test"):
        draw(tmp_path / "images" / split, 4, sorted(COLOURS))
    sizes = {"data.size": "16", "backbone_options.size": "16"}
    changes = {"dataset": f"imagefolder:{tmp_path / 'images'}", "changes": sizes, "base": 4}
    search = Search(tmp_path / "search", **{**SHORT, **changes})
    assert search.images.shape == (3, 16, 16)


def test_head_has_the_precision_of_its_candidate(tmp_path, monkeypatch):
    used = {}

    def noting(features, rows, split, head, gammas):
        used[head.expansion_size] = head.dtype
        return curves(features, rows, split, head, gammas)

    monkeypatch.setattr(choice_module, "curves", noting)
    candidates = {"half": {"dtype": "float32", "expansion_size": 50}}
    Search(tmp_path, **SHORT | {"candidates": candidates, "splits": (0,)}).run()
    assert used == {60: "float64", 50: "float32"}


def test_plan_is_what_is_left(tmp_path):
    everything = Search(tmp_path, **SHORT)
    both = sum(everything._inputs(everything.recipes[REFERENCE], number) for number in (0, 2))
    assert everything.plan().splitlines()[1:] == [
        f"  reference: {both / 1e6:.3g} million network inputs",
        f"  rotation: {2 * both / 1e6:.3g} million network inputs",
        "  wide: 0 million network inputs",
    ]
    Search(tmp_path, **SHORT | {"splits": (0,)}).run()
    left = everything._inputs(everything.recipes[REFERENCE], 2)
    assert f"{3 * left / 1e6:.3g} million network inputs in all\n" in everything.plan()
    Search(tmp_path, **SHORT | {"candidates": {}}).run()
    head, *lines = everything.plan().splitlines()
    assert head.endswith("; done: reference")
    assert lines[1:] == ["  wide: 0 million network inputs"]  # its network is there


def test_network_that_another_process_is_at_is_left_to_it(tmp_path):
    search = Search(tmp_path, **SHORT)
    search.run()
    before = accuracies(tmp_path)
    (tmp_path / "choice.jsonl").unlink()
    taken = sorted((tmp_path / "networks").iterdir())[0] / "network.safetensors"

    # As another process would: a second lock of this very thread would be refused as a mistake.
    with taken.open("rb+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        Search(tmp_path, **SHORT).run()
    assert 0 < len(accuracies(tmp_path)) < len(before)
    Search(tmp_path, **SHORT).run()
    assert accuracies(tmp_path) == before
    with locked(taken, timeout=0):
        pass


def test_rows_have_the_paired_difference_and_its_standard_error(tmp_path):
    search = Search(tmp_path, **SHORT)
    tmp_path.mkdir(exist_ok=True)
    values = {
        REFERENCE: {0: {"0.01": [50.0, 40.0], "0.1": [70.0, 50.0]}, 2: {"0.01": [50.0], "0.1": [80.0]}},
        "rotation": {0: {"0.01": [70.0, 60.0], "0.1": [1.0, 1.0]}, 2: {"0.01": [83.0], "0.1": [2.0]}},
    }
    for name, splits in values.items():
        for split, accuracy in splits.items():
            search.records.append(
                {
                    "kind": "choice", "dataset": "digits", "order": "natural", "recipe": "digits",
                    "candidate": name, "identity": search._identity(search.recipes[name]),
                    "split": split, "accuracy": accuracy, "network_inputs": 10,
                }
            )  # fmt: skip
    reference, rotation = search.rows()
    assert (reference["gamma"], reference["average"]) == (0.1, 70.0)
    # Differences of 5 and 3: mean 4, standard error √2/√2.
    assert (rotation["gamma"], rotation["difference"]) == (0.01, 4.0)
    assert rotation["error"] == pytest.approx(math.sqrt(2) / math.sqrt(2))
    assert rotation["last"] == (60 + 83) / 2
    assert "+4.00 ± 1.00 *" in table([reference, rotation])


def test_command_prints_a_table_and_a_plan(tmp_path):
    arguments = ["bench", "choose", "--base", "6", "--splits", "0,2", "--out", str(tmp_path / "choice")]
    arguments += ["--set", "training.epochs=1", "--set", "expansion_size=60"]
    arguments += ["--try", "turned, one copy training.auxiliary.copies=1"]
    arguments += ["--try", "features.mirror=true"]
    plan = CliRunner().invoke(app, [*arguments, "--dry-run"])
    assert "6 base classes, splits 0, 2;" in plan.stdout
    assert not (tmp_path / "choice").exists()
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0
    names = [line.split("|")[1].strip() for line in result.stdout.splitlines()]
    assert names[2:] == [REFERENCE, "turned, one copy", "features.mirror=true"]
    more = [*arguments, "--try", "new training.epochs=7"]
    assert CliRunner().invoke(app, [*more, "--table"]).stdout == result.stdout
    elsewhere = CliRunner().invoke(app, [*arguments, "--table", "--out", str(tmp_path / "typo")])
    assert "Nothing is recorded" in elsewhere.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--try", "nameless"], "'nameless' changes nothing"),
        (["--try", "bad training.depth=3"], "There is no setting 'training.depth'"),
        (["--try", "reference training.epochs=3"], "'reference' is the recipe as it is"),
        (["--try", "a training.epochs=3", "--try", "a training.epochs=4"], "called 'a'"),
        (["--try", "weak gamma=1000"], "γ is chosen among those of --gammas"),
        (["--set", "gamma=1000"], "γ is chosen among those of --gammas"),
        (["--gammas", "0.1,0.1"], "Values of γ must differ"),
        (["--splits", "a"], "--splits must be a whole number"),
        (["--splits", "1,1"], "Splits are different whole numbers"),
        (["--set", "epochs"], "given as key=value"),
    ],
)
def test_bad_arguments_are_told(arguments, message):
    result = CliRunner().invoke(app, ["bench", "choose", "--dry-run", *arguments])
    assert result.exit_code == (2 if arguments == ["--set", "epochs"] else 1)
    assert message in result.stderr
