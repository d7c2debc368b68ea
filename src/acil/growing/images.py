"""ImageClassifier: a network and a closed-form head, for own images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from acil.encoders.images.decode import Source, thumbnail
from acil.encoders.images.embedder import Embedded, Embedder, embed_files
from acil.encoders.images.listing import (
    Given,
    images_and_labels,
    name_of,
    require_labels,
    require_list,
)
from acil.encoders.images.networks import DEFAULT, open_network
from acil.encoders.stored import open_stored
from acil.errors import InputError
from acil.growing.classifier import Classifier, Progress
from acil.growing.results import Shown

#: Width and height of images in a report, at most, in pixels.
_THUMBNAIL = 160


class ImageClassifier(Classifier):
    """Classifier for image files that learns new classes in seconds and keeps no image.

    Images are given as a folder with one folder for each class or a CSV file of path and label, see
    `acil.encoders.images.listing.list_images`; or as a list: of paths, contents of files (bytes), PIL
    images or arrays, as `acil.encoders.images.decode` takes them.

    Parameters
    ----------
    backbone : str or Embedder, optional
        The frozen network, by default `acil.encoders.images.networks.DEFAULT`; see `open_network` there.
    expansion_size : int or None, default=None
        Width of the random expansion. The default uses the features as they are: on few images a wider
        model was not better, and its file grows with the square of the width.
    gamma : float or "auto", default="auto"
        Ridge strength γ; ``"auto"`` chooses it from the sums, see `ACILClassifier`.
    track : bool, default=True
        Keep a salted hash of each image, and of its class: duplicates are skipped, and an image
        never learnt, or learnt as another class, cannot be forgotten. Whoever has the model and an
        image can then tell whether it was learnt; with False, no hash is kept.
    random_state : int, default=0
        Seed of the expansion.
    device : str, default="auto"
        Of the head; networks in ONNX run on the CPU.
    clip_norm, min_class_samples
        See `ACILClassifier`.

    Notes
    -----
    Every change makes a new state beside the old one and then takes its place. So a call that fails
    changes nothing, and predictions in other threads go on with the state they began with.

    Scores are linear discriminants (``scores="discriminant"`` of `ACILClassifier`): classes with few
    images hold their own beside classes with many, and probabilities are calibrated.

    `forget` is exact for the head; a network that was trained on the images still knows them.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> from PIL import Image
    >>> from acil import ImageClassifier
    >>> from acil.encoders.images import build
    >>> from acil.encoders.images.embedder import TorchEmbedder
    >>> folder = tempfile.TemporaryDirectory()
    >>> for name, level in (("dark", 20), ("light", 230)):
    ...     place = pathlib.Path(folder.name, name); place.mkdir()
    ...     for i in range(3):
    ...         Image.new("L", (8, 8), level + i).save(place / f"{i}.png")
    >>> model = ImageClassifier(TorchEmbedder(build("smallcnn")))
    >>> model.learn(folder.name).totals
    {'dark': 3, 'light': 3}
    >>> model.predict([place / "0.png"])
    ['light']
    >>> folder.cleanup()
    """

    thing, encoder = "image", "images"

    def __init__(
        self,
        backbone: str | Embedder | None = None,
        *,
        expansion_size: int | None = None,
        gamma: float | Literal["auto"] = "auto",
        track: bool = True,
        random_state: int = 0,
        device: str = "auto",
        clip_norm: float | None = None,
        min_class_samples: int = 1,
    ) -> None:
        network = DEFAULT if backbone is None else backbone
        if not isinstance(network, str | Embedder):
            raise InputError(
                f"A network is given by its name or as an Embedder, not as {type(network).__name__}. A "
                "module of torch needs TorchEmbedder(WrappedBackbone(…)): see "
                "docs/own-images.md#networks."
            )
        super().__init__(
            network,
            track,
            expansion_size=expansion_size,
            gamma=gamma,
            random_state=random_state,
            device=device,
            clip_norm=clip_norm,
            min_class_samples=min_class_samples,
        )

    def _open(self, source: str, learnt: Mapping[str, Any] | None) -> Embedder:
        return open_stored(source, learnt, open_network)

    def _given(
        self, source: Given, labels: str | Sequence[str] | None, skip_bad: bool
    ) -> tuple[list[Source], list[str], list[str]]:
        # Images that cannot be read are reported when they are.
        return *images_and_labels(source, labels), []

    def _require_list(self, sources: object) -> None:
        require_list(sources)

    def _require_labels(self, source: Given, labels: object) -> None:
        require_labels(source, labels)

    def _embedded(
        self, sources: Sequence[Source], skip_bad: bool, progress: Progress | None
    ) -> Embedded:
        return embed_files(sources, self.embedder, skip_bad, progress)

    def _called(self, source: Source, number: int) -> str:
        return name_of(source, number)

    def _shown(self, sources: Sequence[Source]) -> Shown:
        by_name = {name_of(source, i): source for i, source in enumerate(sources)}
        return lambda name: thumbnail(by_name[name], _THUMBNAIL)
