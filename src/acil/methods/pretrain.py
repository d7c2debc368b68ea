"""The base network: trained once for a seed and a recipe, then shared by all methods and all K."""

from __future__ import annotations

import copy
import logging
from pathlib import Path

import torch
from torch import Tensor

from acil.distributed import Group
from acil.distributed.collectives import share
from acil.errors import InputError
from acil.methods.base import Context, Phase
from acil.methods.frozenfit import fit_classifier
from acil.methods.weightfile import read_weights, write_weights
from acil.training.checkpoint import Checkpoint
from acil.training.loop import train
from acil.training.network import Network
from acil.vision.backbones import Backbone, build, fingerprint, load_backbone, save_backbone

logger = logging.getLogger(__name__)


def base_backbone(context: Context, phase: Phase) -> Backbone:
    """Return the network that the base phase asks for: given, trained before, or trained now.

    Parameters
    ----------
    context : Context
    phase : Phase
        The base phase.

    Notes
    -----
    In a group, rank 0 gives it to the others.
    """
    if context.group is not None:
        return _from_rank_0(context, context.group, phase)
    return _own_backbone(context, phase)


def _from_rank_0(context: Context, group: Group, phase: Phase) -> Backbone:
    backbone = _own_backbone(context, phase) if group.leads else context.backbone
    content = share(backbone.state_dict() if group.leads and backbone is not None else None, group)
    if backbone is None:
        backbone = build(context.recipe.backbone, **dict(context.recipe.backbone_options))
    if not group.leads:
        try:
            backbone.load_state_dict(content or {})
        except RuntimeError as error:
            raise InputError(
                f"The network of rank 0 is not the one of this process: {error} Give all processes the "
                "same --backbone."
            ) from error
    return backbone.to(context.device).eval()


def _own_backbone(context: Context, phase: Phase) -> Backbone:
    if context.backbone is not None:
        return context.backbone
    stored = _stored(context)
    if stored is not None and stored.exists():
        return load_backbone(stored, device=context.device)[0]
    return _train_base(context, phase).backbone


def base_network(context: Context, phase: Phase) -> Network:
    """Return the base network with its classifier, the caller's own to train on.

    A network that comes without a classifier for the phase's classes gets a linear one that is fitted on
    its frozen features of the phase, with the recipe's training; that is logged.

    Parameters
    ----------
    context : Context
    phase : Phase
        The base phase; with a network that was given, any first phase.
    """
    stored = _stored(context)
    if context.backbone is not None:
        backbone, weights = copy.deepcopy(context.backbone), context.classifier
    elif stored is not None and stored.exists():
        backbone = load_backbone(stored, device=context.device)[0]
        weights = stored_classifier(stored, backbone)
    else:
        return _train_base(context, phase)
    generator = torch.Generator().manual_seed(context.seed)
    network = Network(backbone, len(phase.classes), generator=generator).to(context.device).eval()
    if weights is None or len(weights["weight"]) != network.n_classes:
        logger.warning(
            "The base network has no classifier for these classes: one is fitted on its features."
        )
        fit_classifier(network, phase.images, phase.labels, context)
    else:
        network.classifier.load_state_dict(weights)
    return network


def stored_classifier(backbone_file: Path, backbone: Backbone) -> dict[str, Tensor] | None:
    """Return the weights of the linear classifier stored beside a backbone, or None.

    Parameters
    ----------
    backbone_file : Path
    backbone : Backbone
        What the file holds: a classifier that was trained with another network is not returned.
    """
    return read_weights(_classifier_file(backbone_file), fingerprint(backbone))


def new_network(context: Context, n_classes: int) -> Network:
    """Return the recipe's untrained network, drawn from the seed."""
    generator = torch.Generator().manual_seed(context.seed)
    backbone = build(context.recipe.backbone, generator, **dict(context.recipe.backbone_options))
    return Network(backbone, n_classes, generator=generator)


def require_base(phase: Phase) -> None:
    """Raise unless this is a base phase, on which a network can be trained."""
    if phase.index != 0:
        raise InputError(
            "There is no base phase to train a network on. Give a trained one with --backbone, or take "
            "a base of at least one class."
        )


def _train_base(context: Context, phase: Phase) -> Network:
    require_base(phase)
    network = new_network(context, len(phase.classes))
    checkpoint = None if context.checkpoint is None else Checkpoint(context.checkpoint / "training")
    train(
        network,
        phase.images.pixels(),
        phase.labels,
        context.recipe.training,
        preprocessing=network.backbone.preprocessing,
        seed=context.seed,
        device=context.device,
        checkpoint=checkpoint,
        progress=context.progress,
    )
    stored = _stored(context)
    if stored is None or checkpoint is None:
        return network
    # The classifier first: where there is a backbone file, its classifier is there too.
    owner = fingerprint(network.backbone)
    write_weights(_classifier_file(stored), network.classifier.state_dict(), owner)
    save_backbone(network.backbone, stored, dict(context.identity))
    checkpoint.remove()
    # What runs is what is stored, so that a resumed run goes on with the same bits.
    return base_network(context, phase)


def _stored(context: Context) -> Path | None:
    return None if context.checkpoint is None else context.checkpoint / "backbone.safetensors"


def _classifier_file(backbone_file: Path) -> Path:
    return backbone_file.with_name("classifier.safetensors")
