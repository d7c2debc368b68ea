"""Weights in a safetensors file that says which network they belong to."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from acil.atomic import cannot_write, replacing
from acil.errors import ModelFileError

logger = logging.getLogger(__name__)

_METADATA_KEY = "acil_weights"


def write_weights(path: Path, weights: Mapping[str, Tensor], owner: str) -> None:
    """Write tensors, completely or not at all.

    Parameters
    ----------
    path : Path
        Its folder is made if needed.
    weights : Mapping of str to Tensor
    owner : str
        What `read_weights` must be asked for.
    """
    stored = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(path, error) from error
    with replacing(path) as draft:
        try:
            save_file(stored, draft, metadata={_METADATA_KEY: json.dumps({"owner": owner})})
        except SafetensorError as error:
            raise cannot_write(path, error) from error


def read_weights(path: Path, owner: str) -> dict[str, Tensor] | None:
    """Return the tensors of a file; None if it is missing, damaged or belongs to another network.

    A file that is there and cannot be used is logged: its content is computed again.
    """
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            facts = json.loads((file.metadata() or {})[_METADATA_KEY])
            # Copied, because what is mapped may lie at an address that slows everything down.
            found = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        if facts["owner"] == owner:
            return found
        cause = "it belongs to another network"
    except OSError as error:
        raise ModelFileError(f"Cannot read {path}: {error.strerror}. Check permissions.") from error
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        cause = str(error)
    logger.warning("The weights in %s are not used (%s): they are computed again.", path, cause)
    return None
