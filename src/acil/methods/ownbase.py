"""Base networks of methods whose base training differs from the one that the others share."""

from __future__ import annotations

import copy
import hashlib
import inspect
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from acil.methods.base import Context, Phase
from acil.methods.frozenfit import fit_classifier
from acil.methods.pretrain import require_base
from acil.methods.weightfile import read_weights, write_weights
from acil.modelfile.writing import locked
from acil.training.checkpoint import Checkpoint
from acil.training.loop import Objective, train
from acil.training.settings import Training
from acil.vision.backbones import BACKBONES, Backbone, build

logger = logging.getLogger(__name__)


def own_base_network(
    context: Context,
    phase: Phase,
    name: str,
    make: Callable[[Backbone, torch.Generator], Any],
    options: dict[str, Any],
    training: Training,
    objective: Objective | None = None,
) -> Any:
    """Return a method's own base network: trained before in this run, or trained now.

    On a network that was given, only a classifier is fitted: it is taken as it is.

    Parameters
    ----------
    context : Context
    phase : Phase
        The base phase; with a network that was given, any first phase.
    name : str
        Of the method; tells its files from those of others.
    make : callable
        (backbone, generator) → network with ``backbone`` and ``classifier``.
    options : dict
        Of the backbone, beyond the recipe's. A backbone that does not have one of them goes without.
    training : Training
    objective : Objective, optional
        By default the cross entropy.
    """
    generator = torch.Generator().manual_seed(context.seed)
    if context.backbone is not None:
        network = make(copy.deepcopy(context.backbone), generator)
        logger.warning("%s takes the given network as it is and fits its own classifier on it.", name)
        fit_classifier(network, phase.images, phase.labels, context, training, objective)
        return network.to(context.device).eval()
    require_base(phase)
    chosen = {**context.recipe.backbone_options, **_known(context.recipe.backbone, options)}
    network = make(build(context.recipe.backbone, generator, **chosen), generator)
    owner = f"{name} {chosen} {training} {len(phase.classes)}"
    if context.checkpoint is None:
        _train(network, context, phase, training, objective, None)
    else:
        key = hashlib.sha256(owner.encode()).hexdigest()[:16]
        folder = context.checkpoint / f"{name}-base-{key}"
        _train_once(network, folder, owner, context, phase, training, objective)
    return network.to(context.device).eval()


def _train_once(
    network: Any,
    folder: Path,
    owner: str,
    context: Context,
    phase: Phase,
    training: Training,
    objective: Objective | None,
) -> None:
    """Train a network in place, or take the weights that a training before has left in a folder."""
    stored = folder / "network.safetensors"
    folder.mkdir(parents=True, exist_ok=True)
    # Runs with other K, side by side, wait here and then find it trained.
    with locked(stored):
        weights = read_weights(stored, owner)
        if weights is None:
            checkpoint = Checkpoint(folder)
            _train(network, context, phase, training, objective, checkpoint)
            write_weights(stored, network.state_dict(), owner)
            checkpoint.remove()
        else:
            network.load_state_dict(weights)


def _train(
    network: Any,
    context: Context,
    phase: Phase,
    training: Training,
    objective: Objective | None,
    checkpoint: Checkpoint | None,
) -> None:
    train(
        network,
        phase.images.pixels(),
        phase.labels,
        training,
        preprocessing=network.backbone.preprocessing,
        seed=context.seed,
        device=context.device,
        objective=objective,
        checkpoint=checkpoint,
        progress=context.progress,
    )


def _known(backbone: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return those options that the constructor of a backbone takes; log the others."""
    taken = inspect.signature(BACKBONES[backbone]).parameters if backbone in BACKBONES else {}
    missing = sorted(set(options) - set(taken))
    if missing:
        logger.info("The backbone %s has no option %s: as it is.", backbone, ", ".join(missing))
    return {name: value for name, value in options.items() if name in taken}
