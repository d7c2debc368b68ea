"""Torch modules as ONNX models, through torch's own exporter."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from acil.errors import MissingExtraError, UnsupportedError
from acil.vision.base import Backbone, normalise

#: Widely supported, and the lowest that torch's exporter writes without converting.
OPSET = 18


class _WithPreprocessing(nn.Module):
    """A backbone that takes uint8 pixels."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, pixels: Tensor) -> Tensor:
        """Normalise, then run the network."""
        features: Tensor = self.backbone(normalise(pixels, self.backbone.preprocessing))
        return features


def exported_network(backbone: Backbone) -> bytes:
    """Return a network as an ONNX model from ``pixels`` to ``features``, for any number of images.

    Parameters
    ----------
    backbone : Backbone
        On the CPU. ``pixels`` are uint8 of shape (n, channels, size, size): normalising them is part of
        the model.
    """
    needed = backbone.preprocessing
    device = next((p.device for p in backbone.parameters()), torch.device("cpu"))
    pixels = torch.zeros(2, len(needed.mean), needed.size, needed.size, dtype=torch.uint8, device=device)
    # Each submodule by itself, since some may have been frozen.
    modes = [(module, module.training) for module in backbone.modules()]
    try:
        return export_module(_WithPreprocessing(backbone).eval(), pixels, "pixels", ["features"])
    finally:
        for module, training in modes:
            module.training = training


def export_module(
    module: nn.Module, example: Tensor, input_name: str, output_names: list[str], opset: int = OPSET
) -> bytes:
    """Return a module of one input as an ONNX model.

    Parameters
    ----------
    module : nn.Module
    example : Tensor of shape (2, …)
        An input; the first dimension stays open.
    input_name : str
    output_names : list of str
    opset : int
        Version of the ONNX operators.

    Raises
    ------
    UnsupportedError
        If torch cannot express the module in ONNX.
    """
    require_onnx()
    dynamic: Any = ({0: torch.export.Dim.DYNAMIC},)
    try:
        with _quiet(), torch.no_grad():
            program = torch.onnx.export(
                module,
                (example,),
                input_names=[input_name],
                output_names=output_names,
                dynamic_shapes=dynamic,
                opset_version=opset,
                dynamo=True,
                verbose=False,
            )
    except Exception as error:  # the exporter wraps whatever the module raised
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UnsupportedError(
            f"torch cannot export this network to ONNX: {reason} Use another backbone, or export the "
            "network with the tools of the library it comes from."
        ) from error
    if program is None:
        raise UnsupportedError("torch returned no ONNX model for this network.")
    content: bytes = program.model_proto.SerializeToString()
    return content


def require_onnx() -> None:
    """Raise a clear error unless everything of the extra ``onnx`` is installed."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(
            f"ONNX needs the package {error.name!r}, which is not installed. Install it with: "
            "pip install 'acil[onnx]'"
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what the exporter prints and warns of, about itself, from users."""
    chatty = logging.getLogger("torch.onnx")
    before = chatty.level
    chatty.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        chatty.setLevel(before)
