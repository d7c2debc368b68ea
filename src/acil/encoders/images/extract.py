"""Images to features: one pass of a frozen network, always the same bits."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from acil.core.linalg import threads_for
from acil.encoders.images.backbones import Backbone, fingerprint, normalise
from acil.encoders.images.cache import FeatureCache
from acil.encoders.images.decode import centre
from acil.encoders.images.imageset import ImageSet
from acil.errors import InputError

#: How much larger than the backbone's input images may be: 256 for 224, as ImageNet's protocol has it.
_MAX_MARGIN = 256 / 224
#: Pixels of one channel in a batch, and the smallest and largest number of images. On two CPU cores
#: ResNet-32 is fastest with 64 images; a GPU needs many more to be busy.
_BATCHES = {"cpu": (2**16, 8, 256), "other": (2**23, 32, 1024)}
#: Seconds between two reports of progress.
REPORT_SECONDS = 0.2


@dataclass(frozen=True)
class Work:
    """How far something is that takes long: reading files, or extracting features."""

    what: str
    done: int
    total: int
    per_second: float
    seconds_left: float

    @classmethod
    def at(cls, what: str, done: int, total: int, now: int, seconds: float) -> Work:
        """Return how far it is, after ``now`` of all that is done took so many seconds."""
        pace = now / max(seconds, 1e-9)
        return cls(what, done, total, pace, (total - done) / pace if pace else 0.0)


class View(NamedTuple):
    """An image, mirrored and then moved by pixels."""

    mirrored: bool
    down: int
    right: int


@dataclass(frozen=True)
class FeatureSettings:
    """Which features of a backbone are used."""

    #: Places of the backbone (`Backbone.taps`). Without any, its own output is the only part; otherwise
    #: each tap is one part, and parts are concatenated.
    taps: tuple[str, ...] = ()
    #: The map of each tap is averaged over grid x grid fields and flattened.
    grid: int = 1
    #: Whether each part is the average over two views, the image and its mirror image.
    mirror: bool = False
    #: Euclidean norm that each part is scaled to, after averaging. A part of zeros stays so.
    length: float | None = None
    #: Whether methods on frozen features centre each dimension, and scale it to the same deviation, by
    #: what the base phase has. The extractor leaves this to them: it knows no phase.
    standardize: bool = False
    #: Also average over each view moved by so many pixels up, down, left and right, black at the edge.
    shift: int = 0
    #: Average nothing: each view of a training image is a row of its own, and an image to be classified
    #: is seen as it is.
    rows: bool = False
    #: Left out where they are not used: caches and networks of earlier versions are found by a hash.
    LATER: ClassVar[tuple[str, ...]] = ("shift", "rows")

    def __post_init__(self) -> None:
        # Settings read from TOML or JSON have a list here.
        object.__setattr__(self, "taps", tuple(self.taps))
        if len(set(self.taps)) != len(self.taps):
            raise InputError(f"Each tap may be named once. Got {self.taps}.")
        if self.grid < 1:
            raise InputError(f"grid must be at least 1. Got {self.grid}.")
        if self.length is not None and not 0 < self.length < float("inf"):
            raise InputError(f"length must be a positive number or None. Got {self.length}.")
        if self.shift < 0:
            raise InputError(f"shift must be at least 0 pixels. Got {self.shift}.")

    @property
    def views(self) -> tuple[View, ...]:
        """The views of an image, itself first."""
        s = self.shift
        moves = ((0, 0), (-s, 0), (s, 0), (0, -s), (0, s)) if s else ((0, 0),)
        return tuple(View(flip, *move) for flip in (False, True)[: 1 + self.mirror] for move in moves)


class FeatureExtractor:
    """Extract features with a frozen backbone, batch by batch, through a cache.

    Parameters
    ----------
    backbone : Backbone
        Is moved to the device; its mode and weights are left as they are.
    settings : FeatureSettings, optional
    device : str or torch.device, default="cpu"
    batch_size : int, optional
        Images that run together; by default what suits the device and the size of images.
    cache : FeatureCache, optional
        Keeps the features of whole splits. Without one, just the images asked for are extracted.
    share : (int, int), optional
        (rank, size): with a cache, extract and keep only every size-th image of a split, beginning
        with number ``rank``. The others belong to other processes, and asking for them is an error.

    Notes
    -----
    Kernels sum in another order for other shapes, so the features of an image would depend on how many
    images run with it. Here every batch is full (the last one repeats an image), so they do not: a
    subset has exactly the features it has within the whole. They may differ in the last digit between
    kinds of device and batch sizes, which are therefore part of what the cache looks up.

    Examples
    --------
    >>> import torch
    >>> from acil.encoders.images import ImageSet, build
    >>> pixels = torch.zeros(3, 1, 8, 8, dtype=torch.uint8)
    >>> extractor = FeatureExtractor(build("smallcnn"), FeatureSettings(taps=("stage2",), grid=2))
    >>> extractor.features(ImageSet(pixels)).shape
    torch.Size([3, 256])
    """

    def __init__(
        self,
        backbone: Backbone,
        settings: FeatureSettings | None = None,
        device: str | torch.device = "cpu",
        batch_size: int | None = None,
        cache: FeatureCache | None = None,
        share: tuple[int, int] | None = None,
        progress: Callable[[Work], None] | None = None,
    ) -> None:
        self.settings = settings or FeatureSettings()
        self.device = torch.device(device)
        known = backbone.taps()
        unknown = [tap for tap in self.settings.taps if tap not in known]
        if unknown:
            raise InputError(
                f"The backbone {backbone.name!r} has no tap {unknown[0]!r}. "
                f"Choose among {', '.join(known) or 'none: it has only its output'}."
            )
        if self.settings.shift >= backbone.preprocessing.size:
            raise InputError(
                f"shift must be less than the {backbone.preprocessing.size} pixels of an image. Got "
                f"{self.settings.shift}."
            )
        if batch_size is not None and batch_size < 1:
            raise InputError(f"batch_size must be at least 1. Got {batch_size}.")
        pixels, least, most = _BATCHES["cpu" if self.device.type == "cpu" else "other"]
        suitable = max(least, min(most, pixels // backbone.preprocessing.size**2))
        self.batch_size = batch_size or suitable
        self.cache = cache
        self.share = share
        self.progress = progress
        self._format = torch.contiguous_format if self.device.type == "cpu" else torch.channels_last
        self.backbone = backbone.to(self.device)
        if self._format == torch.channels_last:
            self.backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.num_features = self._count_features()
        self._multiplications: float | None = None

    @property
    def identity(self) -> str:
        """Hash of backbone, settings and preprocessing, as they are now."""
        settings = asdict(self.settings)
        for name in FeatureSettings.LATER:
            if not settings[name]:
                del settings[name]
        facts = [fingerprint(self.backbone), settings, self.backbone.preprocessing.to_dict()]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def features(self, images: ImageSet) -> Tensor:
        """Return the features of images, of shape (n, num_features): float32, on the CPU.

        Of all their views together, or of the images as they are. Of images up to 256/224 times as large
        as the backbone takes, as ImageNet's protocol has them, the centre counts. The tensor is shared
        with the cache: not to be changed in place.
        """
        views = self.settings.views
        return self._features(images, views[:1] if self.settings.rows else views)

    def training_rows(self, images: ImageSet) -> list[Tensor]:
        """Return what a head learns of images, each as `features`: one tensor, or one for each view."""
        if not self.settings.rows:
            return [self.features(images)]
        return [self._features(images, (view,)) for view in self.settings.views]

    def _features(self, images: ImageSet, views: Sequence[View]) -> Tensor:
        needed = self.backbone.preprocessing
        fits = images.has_pixels and images.shape[0] == len(needed.mean)
        fits = fits and needed.size <= min(images.shape[1:])
        if not fits or max(images.shape[1:]) > round(needed.size * _MAX_MARGIN):
            kind = "these have" if images.has_pixels else "this set has only vectors of"
            raise InputError(
                f"The backbone {self.backbone.name!r} takes images of shape "
                f"{(len(needed.mean), needed.size, needed.size)}, {kind} {images.shape}. "
                "Load them in that shape, or use a backbone built for theirs."
            )
        if self.cache is None or len(images) == 0:
            return self._extract(images, views)
        key = f"{images.identity}:{self.identity}:{self.device.type}:{self.batch_size}"
        if views[0] != self.settings.views[0]:
            key += f":{tuple(views[0])}"
        whole, chosen = images.whole, images.indices
        if self.share is not None:
            rank, size = self.share
            places = torch.arange(len(whole)) if chosen is None else chosen
            if not bool((places % size == rank).all()):
                raise InputError(
                    f"This extractor has share {rank} of {size}, and was asked for images of other "
                    "shares. Ask the process that has them."
                )
            whole, chosen = whole.subset(torch.arange(rank, len(whole), size)), places // size
            key += f":{rank}/{size}"
        if images.files is not None:
            # Features of so many images stay on the disk.
            shape = (len(whole), self.num_features)
            return self.cache.rows(key, shape, lambda first: self._rows(whole, views, first), chosen)
        features = self.cache.get(key, lambda: self._extract(whole, views))
        return features if chosen is None else features[chosen]

    def _extract(self, images: ImageSet, views: Sequence[View]) -> Tensor:
        features = torch.empty(len(images), self.num_features)
        start = 0
        for rows in self._rows(images, views):
            features[start : start + len(rows)] = rows
            start += len(rows)
        return features

    def _rows(self, images: ImageSet, views: Sequence[View], first: int = 0) -> Iterator[Tensor]:
        """Yield the features of images from the first on, batch by batch."""
        if first:
            images = images.subset(torch.arange(first, len(images)))
        if self._multiplications is None:
            needed = self.backbone.preprocessing
            blank = torch.zeros(1, len(needed.mean), needed.size, needed.size, device=self.device)
            self._multiplications = self.batch_size * multiplications(self.backbone, blank)
        with exact_inference(self.backbone, self.device), threads_for(self._multiplications):
            started = reported = time.monotonic()
            done = 0
            for batch in images.batches(self.batch_size):
                repeated = batch[-1:].expand(self.batch_size - len(batch), -1, -1, -1)
                full = torch.cat([batch, repeated])
                rows = self._row_features(full, views)[: len(batch)].cpu()
                done += len(batch)
                now = time.monotonic()
                if self.progress is not None and now - reported >= REPORT_SECONDS:
                    self.progress(
                        Work.at("features", first + done, first + len(images), done, now - started)
                    )
                    reported = now
                yield rows

    def _row_features(self, pixels: Tensor, views: Sequence[View]) -> Tensor:
        middle = centre(pixels, self.backbone.preprocessing.size).to(self.device)
        seen = [self._parts(self._input(middle, view)) for view in views]
        parts = [sum(same[1:], start=same[0]) / len(views) for same in zip(*seen, strict=True)]
        if self.settings.length is not None:
            parts = [self.settings.length * functional.normalize(part) for part in parts]
        return torch.cat(parts, dim=1)

    def _input(self, pixels: Tensor, view: View) -> Tensor:
        """Return what the network takes of one view of images."""
        if view.mirrored:
            pixels = pixels.flip(3)
        if view.down or view.right:
            pixels = functional.pad(pixels, (view.right, -view.right, view.down, -view.down))
        return normalise(pixels.contiguous(memory_format=self._format), self.backbone.preprocessing)

    def _parts(self, x: Tensor) -> list[Tensor]:
        taps, modules = self.settings.taps, self.backbone.taps()
        pooled: dict[str, Tensor] = {}

        def hold(name: str, module: nn.Module, inputs: object, output: object) -> None:
            # Pooled at once: the next layer may change the map in place.
            pooled[name] = _pool(output, name, self.settings.grid)

        with ExitStack() as hooks:
            for name in taps:
                hooks.enter_context(modules[name].register_forward_hook(partial(hold, name)))
            output = self.backbone(x)
        if taps:
            unused = [tap for tap in taps if tap not in pooled]
            if unused:
                raise InputError(f"The tap {unused[0]!r} is not used by the forward pass. Leave it out.")
            return [pooled[tap] for tap in taps]
        if output.shape != (len(x), self.backbone.num_features):
            raise InputError(
                f"The backbone {self.backbone.name!r} must return features of shape "
                f"{(len(x), self.backbone.num_features)} for {len(x)} images. "
                f"Got {tuple(output.shape)}."
            )
        return [output.to(torch.float32)]

    def _count_features(self) -> int:
        if not self.settings.taps:
            return self.backbone.num_features
        needed = self.backbone.preprocessing
        blank = torch.zeros(1, len(needed.mean), needed.size, needed.size, dtype=torch.uint8)
        with exact_inference(self.backbone, self.device):
            return self._row_features(blank, self.settings.views[:1]).shape[1]


def _pool(output: object, name: str, grid: int) -> Tensor:
    if not isinstance(output, Tensor) or output.ndim != 4:
        actual = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise InputError(
            f"The tap {name!r} must give a map of shape (n, channels, height, width). Got {actual}. "
            "Choose another tap."
        )
    if min(output.shape[2:]) < grid:
        raise InputError(
            f"The map of the tap {name!r} has {output.shape[2]} x {output.shape[3]} places, fewer than "
            f"grid={grid}. Use a smaller grid, or an earlier tap."
        )
    return functional.adaptive_avg_pool2d(output.to(torch.float32), grid).flatten(1)


@contextmanager
def exact_inference(network: nn.Module, device: torch.device) -> Iterator[None]:
    """Run a network in evaluation mode, without gradients, autocast and reduced precision.

    Everything is put back afterwards, also after an error.
    """
    no_autocast = torch.autocast(device.type, enabled=False)
    with evaluating(network), torch.no_grad(), no_autocast, full_float32():
        yield


def multiplications(network: nn.Module, x: Tensor) -> float:
    """Return those of all convolutions and linear layers for an input; ∞ if there are none."""
    counts: list[float] = []

    def count(layer: nn.Conv2d | nn.Linear, inputs: object, output: Tensor) -> None:
        counts.append(output.numel() * layer.weight[0].numel())

    with ExitStack() as hooks, evaluating(network), torch.no_grad():
        for layer in network.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                hooks.enter_context(layer.register_forward_hook(count))
        network(x)
    return sum(counts) or math.inf


def layer_outputs(network: nn.Module, x: Tensor) -> int:
    """Return how many numbers the layers of a network put out for an input, which training keeps."""
    sizes: list[int] = []

    def count(layer: nn.Module, inputs: object, output: object) -> None:
        if isinstance(output, Tensor):
            sizes.append(output.numel())

    with ExitStack() as hooks, evaluating(network), torch.no_grad():
        for layer in network.modules():
            if not any(True for _ in layer.children()):
                hooks.enter_context(layer.register_forward_hook(count))
        network(x)
    return sum(sizes)


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Switch to evaluation mode; put back that of each submodule by itself, since some may be frozen."""
    modes = [(module, module.training) for module in network.modules()]
    try:
        network.eval()
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def full_float32() -> Iterator[None]:
    """Switch off TF32, bfloat16 products of float32 and kernels chosen by timing; put all back after."""
    backends: Any = torch.backends
    changes: list[tuple[Any, str, Any]]
    changes = [(backends.cudnn, "benchmark", False), (backends.cudnn, "deterministic", True)]
    # From torch 2.9 on, each kind of operation has its own setting, and reading an old flag fails once
    # a user has set a new one.
    if hasattr(backends.cudnn, "conv"):
        owners = [backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn]
        owners += [backends.mkldnn.matmul, backends.mkldnn.conv]
        changes += [(owner, "fp32_precision", "ieee") for owner in owners]
    else:
        changes += [(owner, "allow_tf32", False) for owner in (backends.cuda.matmul, backends.cudnn)]
    before = [getattr(owner, name) for owner, name, _ in changes]
    try:
        for owner, name, value in changes:
            setattr(owner, name, value)
        yield
    finally:
        for (owner, name, _), value in zip(changes, before, strict=True):
            setattr(owner, name, value)
