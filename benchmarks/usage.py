"""What a user waits for and pays: features, predictions, memory, start-up."""

from __future__ import annotations

import io
from typing import Any

import torch
from PIL import Image

from acil import ACILClassifier, ImageClassifier
from acil.core.classifier import learnt_of
from acil.encoders.images import FeatureExtractor, ImageSet, build, content_identity
from acil.encoders.images.decode import normalise
from acil.encoders.images.embedder import TorchEmbedder
from benchmarks.head import extra_memory
from benchmarks.problem import GAMMA, Problem
from benchmarks.timing import alternating, run_python

#: Batches of the bare forward; its fastest counts.
_BATCHES = (1, 16, 64)


def measure_features(quick: bool) -> list[dict[str, Any]]:
    """Return images a second of ResNet-32: extraction with fixed bits, and the bare forward."""
    number = 64 if quick else 512
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (number, 3, 32, 32), dtype=torch.uint8, generator=generator)
    network = build("resnet32", generator).eval()
    extractor = FeatureExtractor(network)
    given = ImageSet(images, None, content_identity(images))

    def bare(size: int) -> None:
        with torch.no_grad():
            for part in images.split(size):
                network(normalise(part, network.preprocessing))

    extractor.features(given.subset(torch.arange(2)))
    actions = {f"bare forward, batches of {size}": lambda size=size: bare(size) for size in _BATCHES}
    actions[f"extraction, batches of {extractor.batch_size}"] = lambda: extractor.features(given)
    taken = alternating(actions, 1 if quick else 3)
    best = min(value for name, value in taken.items() if name.startswith("bare"))
    return [
        {"what": name, "images": number, "speed": number / value, "ratio": best / value}
        for name, value in taken.items()
    ]


def measure_latency(quick: bool) -> list[dict[str, Any]]:
    """Return the time of predictions, against the bare products of matrices they consist of."""
    found = []
    for width in (128,) if quick else (1024, 4096):
        (features, labels), *_ = Problem(2 * width, phases=0).make()
        clf = ACILClassifier(scores="ridge", expansion_size=width, gamma=GAMMA, random_state=0).fit(
            features, labels
        )
        projection = learnt_of(clf).model.expansion.projection.double()
        weights = torch.from_numpy(clf.coef_.T.copy())
        for n in (1, 100) if quick else (1, 1000):
            rows = features[torch.arange(n) % len(features)].double()
            array = rows.numpy()
            repeats = range(200 if n == 1 else 5)

            def product(rows=rows, projection=projection, weights=weights, repeats=repeats):
                for _ in repeats:
                    torch.relu(rows @ projection) @ weights

            def called(method, X, repeats=repeats):
                for _ in repeats:
                    method(X)

            actions = {"bare product": product}
            for name in ("decision_function", "predict"):
                method = getattr(clf, name)
                actions[f"{name}, tensor"] = lambda m=method, X=rows: called(m, X)
                actions[f"{name}, array"] = lambda m=method, X=array: called(m, X)
            taken = alternating(actions, 3)
            found += [
                {"width": width, "rows": n, "call": name, "seconds": value / len(repeats)}
                | {"ratio": value / taken["bare product"]}
                for name, value in taken.items()
            ]
    return [*found, *_one_image(5 if quick else 50)]


def _one_image(repeats: int) -> list[dict[str, Any]]:
    """Time one picture through `ImageClassifier`, and through its decoder and network alone."""
    buffers = []
    for level in (40, 200):
        buffer = io.BytesIO()
        Image.new("RGB", (48, 48), (level, 90, 120)).save(buffer, "PNG")
        buffers.append(buffer.getvalue())
    network = TorchEmbedder(build("resnet32", torch.Generator().manual_seed(0)))
    model = ImageClassifier(network)
    model.learn(buffers, ["dark", "light"])
    model.predict(buffers[:1])

    def bare() -> None:
        for _ in range(repeats):
            pixels = network.decode(buffers[0])
            network.embed(pixels[None])

    def ours() -> None:
        for _ in range(repeats):
            model.predict(buffers[:1])

    taken = alternating({"decoder and ResNet-32 alone": bare, "ImageClassifier.predict": ours}, 3)
    first = next(iter(taken.values()))
    return [
        {"width": 64, "rows": 1, "call": f"{name} (one image)", "seconds": value / repeats}
        | {"ratio": value / first}
        for name, value in taken.items()
    ]


def measure_memory(quick: bool) -> list[dict[str, Any]]:
    """Return the peak memory of learning and solving, in units of d² · 8 bytes, the sums included."""
    found = []
    for width in (1024,) if quick else (2048, 4096, 8192):
        for dtype in ("float64",) if quick else ("float64", "mixed"):
            ratio = 1 + extra_memory(width, dtype)
            found.append({"width": width, "head": f"gram, {dtype}", "ratio": ratio})
            found[-1]["gigabytes"] = found[-1]["ratio"] * width**2 * 8 / 1e9
    return found


def measure_start(quick: bool) -> list[dict[str, Any]]:
    """Return the time until things are imported, each in a new process."""
    libraries = "import torch, sklearn.base, sklearn.utils.validation, sklearn.metrics"
    commands = {
        "Python alone": ("-c", "pass"),
        "import torch and scikit-learn": ("-c", libraries),
        "import torch, scikit-learn and acil": ("-c", f"{libraries}; from acil import ACILClassifier"),
        "acil --version": ("-m", "acil", "--version"),
        "acil --help": ("-m", "acil", "--help"),
    }
    if quick:
        del commands["import torch, scikit-learn and acil"], commands["acil --help"]
    actions = {name: lambda c=command: run_python(*c) for name, command in commands.items()}
    taken = alternating(actions, 1 if quick else 5)
    base = taken["import torch and scikit-learn"]
    return [{"what": name, "seconds": value, "ratio": value / base} for name, value in taken.items()]
