"""The backbones by name: building, identifying, saving and loading them."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from acil.core.files.reading import TensorFile, cannot_read
from acil.core.files.writing import write_tensors
from acil.encoders.images.architectures import Backbone as Backbone
from acil.encoders.images.architectures import ResNet18, ResNet32, SmallCNN
from acil.encoders.images.decode import Preprocessing as Preprocessing
from acil.encoders.images.decode import normalise as normalise
from acil.errors import InputError, ModelFileError

METADATA_KEY = "acil_backbone"
FORMAT_VERSION = 1

#: Name to constructor, which takes a generator and options. A new backbone is one line here.
BACKBONES: dict[str, Callable[..., Backbone]] = {
    "resnet32": ResNet32,
    "resnet18": ResNet18,
    "smallcnn": SmallCNN,
}


def build(name: str, generator: torch.Generator | None = None, **options: Any) -> Backbone:
    """Build a backbone with fresh weights, on the CPU and in training mode.

    Parameters
    ----------
    name : str
        One of `BACKBONES`.
    generator : torch.Generator, optional
        On the CPU; decides the weights. None means a generator with seed 0.
    **options
        Of that backbone, such as ``option="B"`` for the shortcuts of ResNet-32.

    Examples
    --------
    >>> build("resnet32", torch.Generator().manual_seed(1)).num_features
    64
    """
    if name not in BACKBONES:
        raise InputError(f"There is no backbone {name!r}. Choose one of {', '.join(BACKBONES)}.")
    takes = inspect.signature(BACKBONES[name])
    if not options.keys() <= takes.parameters.keys():
        raise InputError(f"The backbone {name!r} has other options than {options}. It takes {takes}.")
    return BACKBONES[name](generator, **options)


def fingerprint(backbone: Backbone, state: Mapping[str, Tensor] | None = None) -> str:
    """Return a hash of everything that decides the features of an image, but the preprocessing.

    That is name, options, and names, shapes and values (as float32) of parameters and buffers, or of
    ``state`` instead of them. It does not depend on device, memory format or training mode.
    """
    digest = hashlib.sha256(json.dumps([backbone.name, backbone.options], sort_keys=True).encode())
    for name, tensor in sorted((state or backbone.state_dict()).items()):
        if name.endswith("num_batches_tracked"):  # no output depends on this counter
            continue
        digest.update(f"{name} {tuple(tensor.shape)}".encode())
        digest.update(_stored(tensor).numpy().tobytes())
    return digest.hexdigest()


def _stored(tensor: Tensor) -> Tensor:
    """Return a tensor as it is hashed and stored: on the CPU, contiguous, floats as float32."""
    dtype = torch.float32 if tensor.is_floating_point() else tensor.dtype
    return tensor.detach().to(device="cpu", dtype=dtype).contiguous()


def save_backbone(
    backbone: Backbone, path: str | os.PathLike[str], metadata: Mapping[str, Any], half: bool = False
) -> None:
    """Write a backbone to one safetensors file, completely or not at all.

    Parameters
    ----------
    backbone : Backbone
        One of the registry.
    path : str or path-like
        A file there is replaced.
    metadata : mapping
        JSON-able facts to keep with it: order, base classes, seed, recipe, data set. The entries
        ``name``, ``options``, ``preprocessing``, ``fingerprint``, ``half`` and ``format_version`` are
        the backbone's own and are written anew.
    half : bool, default=False
        Store the parameters as float16. A loaded backbone computes with the rounded weights, and its
        fingerprint is theirs. Running means and variances stay in float32: they are few, and a small
        variance would vanish.
    """
    if backbone.name not in BACKBONES:
        raise InputError(
            f"Only backbones of the registry can be saved ({', '.join(BACKBONES)}); {backbone.name!r} "
            "could not be built again on loading. Add it to acil.encoders.images.backbones.BACKBONES."
        )
    state = {name: _stored(tensor) for name, tensor in backbone.state_dict().items()}
    for name, _ in backbone.named_parameters() if half else ():
        full, state[name] = state[name], state[name].to(torch.float16)
        if bool((state[name].isinf() & full.isfinite()).any()):
            raise InputError(
                f"{name} has values up to {float(full.abs().max()):g}, more than float16 holds (65504). "
                "Save this backbone with half=False."
            )
    facts = {
        **metadata,
        "format_version": FORMAT_VERSION,
        "name": backbone.name,
        "options": backbone.options,
        "preprocessing": backbone.preprocessing.to_dict(),
        "fingerprint": fingerprint(backbone, state),
        "half": half,
    }
    write_tensors(path, state, {METADATA_KEY: json.dumps(facts, allow_nan=False)})


def load_backbone(
    path: str | os.PathLike[str], device: str | torch.device = "cpu"
) -> tuple[Backbone, dict[str, Any]]:
    """Read a backbone that `save_backbone` has written, and what was stored with it.

    It is in evaluation mode, with float32 weights. A file that is missing, damaged, not a backbone or
    written by a newer version is a `ModelFileError`.
    """
    try:
        file = TensorFile(path)
        facts = _facts(file.facts(METADATA_KEY))
        backbone = build(facts["name"], **facts["options"])
        backbone.preprocessing = Preprocessing.from_dict(facts["preprocessing"])
        backbone.load_state_dict(file.tensors())
        if fingerprint(backbone) != facts["fingerprint"]:
            raise InputError("its weights do not have the fingerprint it names")
    except OSError as error:
        raise cannot_read(path, error) from error
    except (InputError, ValueError, RecursionError) as error:
        raise ModelFileError(
            f"Cannot read {path} as a backbone: {error}. Give a file that acil has written as a "
            "backbone, or another copy of it."
        ) from None
    return backbone.eval().to(device), facts


def _facts(facts: Any) -> dict[str, Any]:
    version = facts.get("format_version") if isinstance(facts, dict) else None
    if version != FORMAT_VERSION:
        raise InputError(
            f"it has the format version {version!r}, this version of acil reads {FORMAT_VERSION}"
        )
    missing = {"name", "options", "preprocessing", "fingerprint"} - facts.keys()
    if missing or not isinstance(facts["options"], dict) or not isinstance(facts["name"], str):
        raise InputError(f"its metadata is incomplete (missing: {sorted(missing)})")
    return dict(facts)
