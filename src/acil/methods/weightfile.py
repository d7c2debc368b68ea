"""Weights in a safetensors file that says which network they belong to."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from acil.errors import ModelFileError
from acil.modelfile.writing import write_tensors

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
    write_tensors(path, weights, {_METADATA_KEY: json.dumps({"owner": owner})}, make_folder=True)


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
