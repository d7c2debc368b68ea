"""ONNX: network, expansion and head in one graph, compared with PyTorch before it is written.

Beside the graph goes a script that turns an image file into the pixels that the graph takes, as
`acil.encoders.images.decode` does. It needs numpy, Pillow and onnxruntime alone.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import acil
from acil.core.classifier import ACILClassifier, learnt_of
from acil.core.expansion import ACTIVATIONS
from acil.core.files.writing import replacing
from acil.encoders.images.embedder import Embedder
from acil.encoders.images.onnx_models import export_module, open_session, require_onnx
from acil.errors import UnsupportedError

#: Largest difference of scores to PyTorch, which computes in float64: absolute, and of their range.
TOLERANCE = 1e-3
#: Images, drawn at random, that the graph is compared on.
_CHECKED = 8
#: The script beside a graph; {name} is the file of the graph.
_SCRIPT = '''\
"""Name the class of images: python SCRIPT IMAGE...  Needs numpy, pillow and onnxruntime."""
import json, pathlib, sys
import numpy, onnxruntime
from PIL import Image, ImageOps

session = onnxruntime.InferenceSession(pathlib.Path(__file__).with_name({name!r}))
facts = session.get_modelmeta().custom_metadata_map
classes, needed = json.loads(facts["acil_classes"]), json.loads(facts["acil_backbone"])["preprocessing"]


def centre(image, width, height):
    left, top = round((image.width - width) / 2), round((image.height - height) / 2)
    return image.crop((left, top, left + width, top + height))


def pixels(path):
    """Return an image file as the graph takes it: uint8 of shape (1, channels, size, size)."""
    image, size = ImageOps.exif_transpose(Image.open(path)), needed["size"]
    if image.mode.startswith("I"):  # 16 bits
        grey, clear = numpy.asarray(image).astype(int), image.info.get("transparency")
        grey = numpy.where(grey == clear, 255, (grey + 128) // 257)
        image = Image.fromarray(grey.astype("uint8"))
    if "A" in image.mode.upper() or "transparency" in image.info:  # on white
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    image, short = image.convert("RGB" if len(needed["mean"]) == 3 else "L"), min(image.size)
    image = centre(image, min(image.width, 4 * short), min(image.height, 4 * short))
    side = max(size, min(round(size / needed["crop"]), short))
    scaled = [max(side, length * side // short) for length in image.size]
    image = centre(image.resize(scaled, Image.Resampling.BILINEAR), size, size)
    return numpy.asarray(image).reshape(1, size, size, -1).transpose(0, 3, 1, 2)


if __name__ == "__main__":
    for path in sys.argv[1:]:
        (scores,), (probabilities,) = session.run(None, {{"pixels": pixels(path)}})
        print(path, classes[scores.argmax()], f"{{probabilities.max():.3f}}")
'''
#: Those of `acil.core`, without writing over their input.
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    **ACTIVATIONS,
    "relu": functional.relu,
    "tanh": torch.tanh,
    "fourier": torch.cos,
}


@dataclass(frozen=True)
class Exported:
    """What was written, and how it compares with PyTorch."""

    bytes: int  # size of the file
    images: int  # number of images compared
    difference: float  # largest one of a score


class _Head(nn.Module):
    """Expansion, scores and probabilities."""

    def __init__(self, clf: ACILClassifier) -> None:
        super().__init__()
        model = learnt_of(clf).model
        projection, self._activation = model.expansion.projection, model.expansion.activation
        if projection is not None and self._activation == "gaussian":
            raise UnsupportedError(
                'A model with activation="gaussian" holds samples, and is not exported. Learn with another.'
            )
        self.projection = None if projection is None else _constant(projection)
        self.bias = None if model.expansion.bias is None else _constant(model.expansion.bias)
        scaling = learnt_of(clf).scaling
        self.scaling = None if scaling is None else _constant(scaling)
        self._clip_norm = model.expansion.clip_norm
        self.coef = _constant(torch.from_numpy(clf.coef_).mT)
        self.intercept = _constant(torch.from_numpy(clf.intercept_))
        self._temperature = clf.temperature_

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return scores and probabilities."""
        rows = features
        if self.scaling is not None:
            rows = (rows - self.scaling[0]) / self.scaling[1]
        if self.projection is not None:
            rows = rows @ self.projection
            rows = _ACTIVATIONS[self._activation](rows if self.bias is None else rows + self.bias)
        if self._clip_norm is not None:
            rows = rows * (self._clip_norm / rows.norm(dim=1, keepdim=True)).clamp(max=1.0)
        scores = rows @ self.coef + self.intercept
        return scores, torch.softmax(scores / self._temperature, dim=1)


def _constant(values: Tensor) -> nn.Parameter:
    return nn.Parameter(values.float().contiguous(), requires_grad=False)


def export_onnx(clf: ACILClassifier, embedder: Embedder, path: str | os.PathLike[str]) -> Exported:
    """Write network and head as one ONNX file, compared with PyTorch first, and a script for it.

    The classifier is fitted on features of the network, every class with samples. Files there are
    replaced. A graph that does not give the scores of PyTorch is not written (`UnsupportedError`).

    Notes
    -----
    Input ``pixels``: uint8 of shape (n, channels, size, size), RGB. Outputs ``scores`` and
    ``probabilities`` of shape (n, classes). The metadata has the names of the classes
    (``acil_classes``, a JSON list) and the network's identity (``acil_backbone``). The script has the
    name of the graph and ``.py``.
    """
    require_onnx()
    if (clf.class_count_ == 0).any():
        raise UnsupportedError("A class without samples has no scores: learn or drop it first.")
    content = _merged(clf, embedder)
    needed = embedder.preprocessing
    shape = (_CHECKED, len(needed.mean), needed.size, needed.size)
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    difference = _compare(content, clf, embedder, pixels)
    script = _SCRIPT.format(name=Path(path).name)
    for target, text in ((Path(path), content), (Path(f"{os.fspath(path)}.py"), script.encode())):
        with replacing(target) as draft:
            draft.write_bytes(text)
    return Exported(len(content), len(pixels), difference)


def _merged(clf: ACILClassifier, embedder: Embedder) -> bytes:
    import onnx
    from onnx import compose

    network = onnx.load_from_string(embedder.to_onnx())
    # Of a user's network with several outputs, the first has the features.
    del network.graph.output[1:]
    opset = next(item.version for item in network.opset_import if item.domain in ("", "ai.onnx"))
    example = torch.ones(2, embedder.num_features)
    head = onnx.load_from_string(
        export_module(_Head(clf).eval(), example, "features", ["scores", "probabilities"], opset)
    )
    head.ir_version = network.ir_version
    # The two come from different exports, and may use the same names inside.
    network, head = compose.add_prefix(network, "network/"), compose.add_prefix(head, "head/")
    joint = [(network.graph.output[0].name, head.graph.input[0].name)]
    whole: Any = compose.merge_models(network, head, io_map=joint)
    names = {"head/scores": "scores", "head/probabilities": "probabilities"}
    # Older files list weights among the inputs.
    weights = {tensor.name for tensor in whole.graph.initializer}
    (pixels,) = (end.name for end in whole.graph.input if end.name not in weights)
    _rename(whole.graph, {pixels: "pixels", **names})
    onnx.helper.set_model_props(
        whole,
        {
            "acil_classes": json.dumps(clf.classes_.tolist()),
            "acil_backbone": json.dumps(embedder.identity),
        },
    )
    whole.producer_name, whole.producer_version = "acil", acil.__version__
    onnx.checker.check_model(whole)
    content: bytes = whole.SerializeToString()
    return content


def _rename(graph: Any, names: dict[str, str]) -> None:
    for end in (*graph.input, *graph.output):
        end.name = names.get(end.name, end.name)
    for node in graph.node:
        for values in (node.input, node.output):
            for place, name in enumerate(values):
                values[place] = names.get(name, name)
        for attribute in node.attribute:  # bodies of loops and branches
            for inner in (attribute.g, *attribute.graphs):
                _rename(inner, names)


def _compare(content: bytes, clf: ACILClassifier, embedder: Embedder, pixels: Tensor) -> float:
    """Return the largest difference of scores; raise if it is too large."""
    session = open_session(content, "exported")
    # One by one, because a graph of a user may be made for one image; called as the script does.
    rows = [
        scores for image in pixels for scores, _ in [session.run(None, {"pixels": image[None].numpy()})]
    ]
    found = np.concatenate(rows).astype(np.float64)
    model = learnt_of(clf).model
    features = embedder.embed(pixels).to(device=model.device, dtype=model.precision.products)
    expected = torch.cat(list(model.scores([features], model.weights()))).cpu().double().numpy()
    # So classes are the same, but for two whose scores are closer than twice the difference.
    # The only class there is may have the score 1 for every image.
    spread = min(1, np.ptp(expected)) if len(clf.classes_) > 1 else 1
    difference, allowed = float(np.abs(found - expected).max()), TOLERANCE * spread
    if not difference <= allowed:
        condition = "not known"
        with contextlib.suppress(UnsupportedError):
            condition = f"{clf.condition_:.2g}"
        raise UnsupportedError(
            f"The ONNX graph differs from PyTorch: scores by up to {difference:.2g}, allowed are "
            f"{allowed:.2g}. It was not written. Take a larger gamma: the condition number is "
            f"{condition}."
        )
    return difference
