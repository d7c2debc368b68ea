"""How long and with what the increments are trained, and what their randomness starts from."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from acil.methods.base import Context
from acil.training.fields import changed
from acil.training.recipes import RECIPES
from acil.training.settings import Training

#: What the user's settings for the increments begin with: ``increment.epochs``.
PREFIX = "increment."

#: Recipe → changes of its training that a method's authors give for the data of that recipe.
Schedules = Mapping[str, Mapping[str, Any]]


def increment_training(context: Context, schedules: Schedules) -> Training:
    """Return the training settings of the increments.

    The recipe's training; then, for the recipes that the method has a schedule of its own for, that
    schedule, except where the user has changed the recipe; then what the user set as
    ``increment.NAME``.

    Parameters
    ----------
    context : Context
    schedules : Mapping of str to Mapping
        By name of the recipe.
    """
    given = context.recipe.training
    usual = RECIPES[context.recipe.name].training if context.recipe.name in RECIPES else given
    own = {
        name: value
        for name, value in schedules.get(context.recipe.name, {}).items()
        if getattr(given, name) == getattr(usual, name)
    }
    asked = {
        name.removeprefix(PREFIX): value
        for name, value in context.settings.items()
        if name.startswith(PREFIX)
    }
    return changed(given, {**own, **asked})


def derived_seed(seed: int, *parts: object) -> int:
    """Return a seed that depends on another and on what it is for; 63 bits, which every generator takes.

    Examples
    --------
    >>> derived_seed(0, "classifier", 60) == derived_seed(0, "classifier", 60)
    True
    >>> derived_seed(0, "classifier", 60) == derived_seed(0, "classifier", 70)
    False
    """
    text = " ".join(["acil method", str(seed), *map(str, parts)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
