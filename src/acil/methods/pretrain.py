"""The base network: trained once for a seed and a recipe, then shared by all methods and all K."""

from __future__ import annotations

import torch

from acil.errors import InputError
from acil.methods.base import Context, Phase
from acil.training.checkpoint import Checkpoint
from acil.training.loop import train
from acil.training.network import Network
from acil.vision.backbones import Backbone, build, load_backbone, save_backbone


def base_backbone(context: Context, phase: Phase) -> Backbone:
    """Return the network that the base phase asks for: given, trained before, or trained now.

    Parameters
    ----------
    context : Context
    phase : Phase
        The base phase.
    """
    if context.backbone is not None:
        return context.backbone
    if phase.index != 0:
        raise InputError(
            "There is no base phase to train a network on. Give a trained one with --backbone, or take "
            "a base of at least one class."
        )
    stored = None if context.checkpoint is None else context.checkpoint / "backbone.safetensors"
    if stored is not None and stored.exists():
        return load_backbone(stored, device=context.device)[0]
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
    if stored is not None and checkpoint is not None:
        save_backbone(network.backbone, stored, dict(context.identity))
        checkpoint.remove()
        # What runs is what is stored, so that a resumed run goes on with the same bits.
        return load_backbone(stored, device=context.device)[0]
    return network.backbone


def new_network(context: Context, n_classes: int) -> Network:
    """Return the recipe's untrained network, drawn from the seed."""
    generator = torch.Generator().manual_seed(context.seed)
    backbone = build(context.recipe.backbone, generator, **dict(context.recipe.backbone_options))
    return Network(backbone, n_classes, generator=generator)
