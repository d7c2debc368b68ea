"""Recipes: what they hold, changing them by dotted keys, and JSON."""

import json
from dataclasses import replace

import pytest
import torch

from acil.bench.training import settings
from acil.bench.training.recipes import RECIPES, recipe, to_dict
from acil.encoders.images.backbones import build
from acil.errors import InputError


def test_paper_recipe_is_the_papers():
    paper = recipe("paper")
    assert paper.backbone == "resnet32"
    assert paper.backbone_options == {"option": "A"}
    training = paper.training
    assert (training.epochs, training.batch_size, training.learning_rate) == (160, 128, 0.1)
    assert (training.schedule, training.milestones, training.decay) == ("step", (80, 120), 0.1)
    assert (training.momentum, training.weight_decay, training.precision) == (0.9, 5e-4, "fp16")
    assert training.augment == ("crop", "flip")
    assert training.keep_last_batch
    assert paper.features.taps == ()
    assert (paper.expansion_size, paper.gamma, paper.dtype) == (8000, 0.1, "float64")


def test_best_differs_from_strong_in_base_training_alone():
    best, strong = to_dict(recipe("best")), to_dict(recipe("strong"))
    differing = {key for key in best if best[key] != strong[key]}
    assert differing == {"name", "training"}
    changes = {"training.epochs": 600, "training.auxiliary.copies": 1}
    assert settings.changed(recipe("strong"), changes).training == recipe("best").training


def test_resnet18_is_trained_as_best_and_has_gamma_at_the_same_share():
    best, wide = recipe("best"), recipe("best-resnet18")
    assert wide.training == best.training
    assert replace(wide.features, taps=best.features.taps) == best.features
    # Each part has the same length, and the trace of the sums grows with their squares.
    assert wide.gamma / len(wide.features.taps) == pytest.approx(best.gamma / len(best.features.taps))


@pytest.mark.parametrize("name", [name for name, known in RECIPES.items() if known.training.epochs])
def test_recipe_builds_a_network_that_has_its_taps(name):
    chosen = recipe(name)
    backbone = build(chosen.backbone, torch.Generator().manual_seed(0), **dict(chosen.backbone_options))
    assert set(chosen.features.taps) <= set(backbone.taps())


def test_recipes_are_json():
    for name, chosen in RECIPES.items():
        values = json.loads(json.dumps(to_dict(chosen)))
        assert values["name"] == chosen.name == name
        assert values["training"]["epochs"] == chosen.training.epochs


def test_text_is_read_as_the_type_of_the_setting():
    changed = settings.changed(
        recipe("paper"),
        {
            "training.epochs": "3",
            "training.learning_rate": "1e-2",
            "training.milestones": "1, 2",
            "training.augment": "",
            "training.nesterov": "true",
            "training.precision": "bf16",
            "features.taps": "stage3.4,stage2.4",
            "features.length": "8",
            "expansion_size": "none",
            "gamma": "1",
            "backbone_options.option": "B",
            "backbone_options.last_relu": "false",
        },
    )
    training = {"epochs": 3, "learning_rate": 0.01, "milestones": (1, 2), "augment": ()}
    training |= {"nesterov": True, "precision": "bf16"}
    assert changed.training == replace(recipe("paper").training, **training)
    assert (changed.features.taps, changed.features.length) == (("stage3.4", "stage2.4"), 8.0)
    assert changed.expansion_size is None
    assert (changed.gamma, type(changed.gamma)) == (1.0, float)
    assert changed.backbone_options == {"option": "B", "last_relu": False}
    assert recipe("paper").backbone_options == {"option": "A"}


def test_values_of_the_right_type_are_taken_as_they_are():
    changes = {"training.epochs": 3, "training.milestones": [1], "features.length": None}
    changed = settings.changed(recipe("strong"), changes)
    assert (changed.training.epochs, changed.training.milestones) == (3, (1,))
    assert changed.features.length is None


@pytest.mark.parametrize(
    "key", ["epochs", "training.epoch", "training", "features.tap.x", "training.epochs.x", ""]
)
def test_unknown_key_is_an_error_that_names_the_known(key):
    with pytest.raises(InputError) as caught:
        settings.changed(recipe("paper"), {key: "3"})
    for known in ("training.epochs", "features.taps", "expansion_size", "backbone_options.KEY"):
        assert known in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("training.epochs", "three", "a whole number"),
        ("training.epochs", 2.5, "a whole number"),
        ("training.epochs", True, "a whole number"),
        ("training.nesterov", "perhaps", "true or false"),
        ("training.nesterov", 3, "true or false"),
        ("training.precision", "half", "float32, tf32, bf16"),
        ("training.milestones", "a,b", "a whole number"),
        ("training.milestones", 3, "a list"),
        ("gamma", "big", "a number or auto"),
        ("backbone", 3, "text"),
        ("expansion_size", "wide", "a whole number or none"),
        ("backbone_options", "3", "a table"),
    ],
)
def test_value_of_the_wrong_type_is_an_error_that_says_what_is_expected(key, value, expected):
    with pytest.raises(InputError, match=expected) as caught:
        settings.changed(recipe("paper"), {key: value})
    assert key in str(caught.value)


def test_values_out_of_range_are_errors():
    for key, value in (("gamma", -1.0), ("expansion_size", 0), ("features.grid", 0)):
        with pytest.raises(InputError, match=key.partition(".")[2] or key):
            settings.changed(recipe("paper"), {key: value})


def test_unknown_recipe_is_an_error_that_names_the_known():
    with pytest.raises(
        InputError,
        match=r"best, .*quick",
    ):
        recipe("fast")
