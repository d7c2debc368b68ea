"""Model files with any content and right checksums: damage is noticed by these, intent is not."""

import json
import zlib

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from acil import ACILClassifier, save

X = np.random.default_rng(0).normal(size=(30, 3))


def write_model(path, inference=False, **options):
    """Write a model of two classes and 30 samples."""
    options = {"expansion_size": 4, "gamma": 1.0, "device": "cpu"} | options
    model = ACILClassifier(**({"scores": "ridge"} | options)).fit(X, np.where(X[:, 0] > 0, "cat", "dog"))
    save(model, path, inference=inference)
    return path


def header_of(path):
    with safe_open(path, framework="numpy") as file:
        return json.loads(file.metadata()["acil"])


def rewrite(path, header=None, text=None, drop=(), **tensors):
    """Change the header or tensors of a file, with everything else as it was."""
    content = {**load_file(path), **tensors}
    for name in drop:
        del content[name]
    sums = {name: zlib.crc32(np.ascontiguousarray(tensor)) for name, tensor in content.items()}
    text = json.dumps(header_of(path) | {"checksums": sums} | (header or {})) if text is None else text
    save_file(content, path, metadata={"acil": text, "checksum": str(zlib.crc32(text.encode()))})
