"""Base networks: trained once on the base phase, stored, and shared by all that ask for the same.

Most methods share one network (`base_backbone`, and with its classifier `base_network`), in the files
``backbone.safetensors`` and ``classifier.safetensors``. Methods with a base training of their own have a
file for each of these trainings (`own_base_network`). On a network that is given, or at any later time,
a classifier can be fitted on features (`linear_probe`).
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import inspect
import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from acil.bench.methods.base import Context, Phase
from acil.bench.training.checkpoint import Checkpoint
from acil.bench.training.loop import train
from acil.bench.training.network import FeatureNetwork, Network
from acil.bench.training.objectives import Objective
from acil.bench.training.settings import Auxiliary, Training
from acil.core.files.reading import TensorFile
from acil.core.files.writing import locked, write_tensors
from acil.encoders.images.backbones import (
    BACKBONES,
    Backbone,
    build,
    fingerprint,
    load_backbone,
    save_backbone,
)
from acil.encoders.images.extract import FeatureExtractor, exact_inference
from acil.encoders.images.imageset import ImageSet
from acil.errors import InputError, ModelFileError
from acil.scale import share

logger = logging.getLogger(__name__)
_METADATA_KEY = "acil_weights"
_CLASSIFIER = "classifier.safetensors"
NO_BASE = (
    "There is no base phase to train a network on. Give a trained one with --backbone, or take a base "
    "of at least one class."
)


def base_backbone(context: Context, phase: Phase | None) -> Backbone:
    """Return the network that the base phase asks for: given, trained before, or trained now.

    Without a phase there is none to train on. In a group, rank 0 gives it to the others.
    """
    group = context.group
    if group is None:
        return _base(context, phase)[0]
    if group.leads:
        backbone = _base(context, phase)[0]
        share(backbone.state_dict(), group)
    else:
        weights = share(None, group) or {}
        backbone = context.backbone or build(context.recipe.backbone, **context.recipe.backbone_options)
        backbone.load_state_dict(weights)
    return backbone.to(context.device).eval()


def base_network(context: Context, phase: Phase) -> Network:
    """Return the base network with its classifier, the caller's own to train on.

    The phase is the base phase or, with a network that was given, any first one. A network that comes
    without a classifier for the phase's classes gets a linear one that is fitted on its frozen features
    of the phase, with the recipe's training; that is logged.
    """
    backbone, weights = _base(context, phase)
    if context.backbone is not None:
        backbone = copy.deepcopy(backbone)
    generator = torch.Generator().manual_seed(context.seed)
    network = Network(backbone, len(phase.classes), generator=generator).to(context.device).eval()
    if weights is None or len(weights["weight"]) != network.n_classes:
        logger.warning(
            "The base network has no classifier for these classes: one is fitted on its features."
        )
        linear_probe(network, phase.images, phase.labels, context)
    else:
        network.classifier.load_state_dict(weights)
    return network


def new_network(context: Context, n_classes: int) -> Network:
    """Return the recipe's untrained network, drawn from the seed.

    Of a network that was given, one of its kind; of one that only the user has, a copy as it is.
    """
    generator, start = torch.Generator().manual_seed(context.seed), context.backbone
    if start is None:
        backbone = build(context.recipe.backbone, generator, **context.recipe.backbone_options)
    elif start.name in BACKBONES:
        backbone = build(start.name, generator, **start.options)
        backbone.preprocessing = start.preprocessing
    else:
        backbone = copy.deepcopy(start)
    return Network(backbone, n_classes, generator=generator)


def stored_classifier(backbone_file: Path, backbone: Backbone) -> dict[str, Tensor] | None:
    """Return the weights of the linear classifier stored beside this backbone, or None."""
    return read_weights(backbone_file.with_name(_CLASSIFIER), fingerprint(backbone))


def _base(context: Context, phase: Phase | None) -> tuple[Backbone, Mapping[str, Tensor] | None]:
    """Return the network, given, trained before or trained now, and its classifier if there is one."""
    if context.backbone is not None:
        return context.backbone, context.classifier
    folder = context.checkpoint
    stored = None if folder is None else folder / "backbone.safetensors"
    if stored is None or not stored.exists():
        phase = require_base(phase)
        network = new_network(context, len(phase.classes))
        checkpoint = None if folder is None else Checkpoint(folder / "training")
        _train(network, context, phase, context.recipe.training, checkpoint=checkpoint)
        weights = network.classifier.state_dict()
        if stored is None or checkpoint is None:
            return network.backbone, weights
        # The classifier first: where there is a backbone file, its classifier is there too.
        write_weights(stored.with_name(_CLASSIFIER), weights, fingerprint(network.backbone))
        save_backbone(network.backbone, stored, dict(context.identity))
        checkpoint.remove()
    # What runs is what is stored, so that a resumed run goes on with the same bits.
    backbone = load_backbone(stored, device=context.device)[0]
    return backbone, stored_classifier(stored, backbone)


def own_base_network(
    context: Context,
    phase: Phase,
    name: str,
    classifier: Callable[[int, torch.Generator], nn.Module],
    options: dict[str, Any],
    training: Training,
    objective: Objective | None = None,
) -> FeatureNetwork:
    """Return a method's own base network: trained before in this run, or trained now.

    The classifier is drawn for a number of features. On a network that was given, only the classifier is
    fitted: it is taken as it is. The method's name tells its files from those of others. The options of
    the backbone come on top of the recipe's; a backbone that does not have one of them goes without.
    """
    generator = torch.Generator().manual_seed(context.seed)
    if context.backbone is not None:
        backbone = copy.deepcopy(context.backbone)
        network = FeatureNetwork(backbone, classifier(backbone.num_features, generator))
        logger.warning("%s takes the given network as it is and fits its own classifier on it.", name)
        linear_probe(network, phase.images, phase.labels, context, training, objective)
        return network.to(context.device).eval()
    require_base(phase)
    chosen = {**context.recipe.backbone_options, **_known(context.recipe.backbone, options)}
    backbone = build(context.recipe.backbone, generator, **chosen)
    network = FeatureNetwork(backbone, classifier(backbone.num_features, generator))
    owner = f"{name} {chosen} {training} {len(phase.classes)}"
    if context.checkpoint is None:
        _train(network, context, phase, training, objective)
        return network
    key = hashlib.sha256(owner.encode()).hexdigest()[:16]
    folder = context.checkpoint / f"{name}-base-{key}"
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
    return network.to(context.device).eval()


def network_features(backbone: Backbone, images: ImageSet | Tensor, device: torch.device) -> Tensor:
    """Return features of images, or of uint8 pixels, as the network sees them now: float32, on the CPU.

    The network moves to the device.
    """
    if isinstance(images, Tensor):
        images = ImageSet(images, None, "")
    # No cache: these features are of a network that the next phase changes.
    return FeatureExtractor(backbone, device=device).features(images)


def classifier_scores(classifier: nn.Module, features: Tensor, device: torch.device) -> Tensor:
    """Return the scores of features, float32 on the CPU; no gradient, no reduced precision."""
    with exact_inference(classifier, device):
        scores: Tensor = classifier(features.to(device))
    return scores.cpu()


def linear_probe(
    network: FeatureNetwork,
    images: ImageSet | Tensor,
    labels: Tensor,
    context: Context,
    settings: Training | None = None,
    objective: Objective | None = None,
) -> None:
    """Train a network's classifier in place, on features of images that are not augmented.

    The settings are by default the recipe's; augmentation and auxiliary tasks are left out. The
    objective is one of the classifier, which takes features.
    """
    plan = settings or context.recipe.training
    train(
        network.classifier,
        network_features(network.backbone, images, context.device),
        labels,
        dataclasses.replace(plan, augment=(), compile=False, auxiliary=Auxiliary()),
        preprocessing=None,
        seed=context.seed_for("classifier on frozen features"),
        device=context.device,
        objective=objective,
        progress=context.progress,
    )


def _known(backbone: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return those options that the constructor of a backbone takes; log the others."""
    taken = inspect.signature(BACKBONES[backbone]).parameters if backbone in BACKBONES else {}
    missing = sorted(set(options) - set(taken))
    if missing:
        logger.info("The backbone %s has no option %s: as it is.", backbone, ", ".join(missing))
    return {name: value for name, value in options.items() if name in taken}


def _train(
    network: FeatureNetwork,
    context: Context,
    phase: Phase,
    training: Training,
    objective: Objective | None = None,
    checkpoint: Checkpoint | None = None,
) -> None:
    train(
        network,
        phase.images.to_train(),
        phase.labels,
        training,
        preprocessing=network.backbone.preprocessing,
        seed=context.seed,
        device=context.device,
        objective=objective,
        checkpoint=checkpoint,
        progress=context.progress,
    )


def require_base(phase: Phase | None) -> Phase:
    """Return a base phase, on which a network can be trained; raise if it is none."""
    if phase is None or phase.index != 0:
        raise InputError(NO_BASE)
    return phase


def write_weights(path: Path, weights: Mapping[str, Tensor], owner: str) -> None:
    """Write tensors that `read_weights` finds again when it is asked for the same owner."""
    write_tensors(path, weights, {_METADATA_KEY: json.dumps({"owner": owner})}, make_folder=True)


def read_weights(path: Path, owner: str) -> dict[str, Tensor] | None:
    """Return the tensors of a file; None if it is missing, damaged or belongs to another network.

    A file that is there and cannot be used is logged: its content is computed again.
    """
    if not path.exists():
        return None
    try:
        file = TensorFile(path)
        if file.facts(_METADATA_KEY)["owner"] == owner:
            return file.tensors()
        cause = "it belongs to another network"
    except OSError as error:
        raise ModelFileError(f"Cannot read {path}: {error.strerror}. Check permissions.") from error
    except (KeyError, TypeError, ValueError) as error:
        cause = str(error)
    logger.warning("The weights in %s are not used (%s): they are computed again.", path, cause)
    return None
