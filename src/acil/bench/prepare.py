"""What the jobs of one run share: data, protocol, recipe, network; and how records name them."""

from __future__ import annotations

import difflib
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from acil.bench.config import METHOD_SETTINGS, RunConfig, data_options
from acil.bench.datasets import DATASETS, WITH_PLACE, Dataset, load, restrict
from acil.bench.methods import Context, available, resolve
from acil.bench.methods.base import Planning
from acil.bench.methods.base_network import NO_BASE, stored_classifier
from acil.bench.orders import canonical_order, class_order
from acil.bench.plan import Grouping, Job, families, has_column, phases, variants
from acil.bench.protocols import PROTOCOLS, Protocol, SiBlurry
from acil.bench.records import key
from acil.bench.training.recipes import Recipe, recipe, to_dict
from acil.bench.training.settings import changed
from acil.core.inputs import resolve_device
from acil.encoders.images.backbones import Backbone, Preprocessing, build, load_backbone
from acil.encoders.images.cache import FeatureCache
from acil.encoders.images.embedder import Embedder, TorchEmbedder
from acil.encoders.images.extract import REPORT_SECONDS, FeatureExtractor, Work
from acil.encoders.images.imageset import ImageSet
from acil.encoders.images.listing import first_of
from acil.encoders.images.networks import EFFICIENTNET, open_network
from acil.errors import InputError
from acil.scale import Group

ProgressListener = Callable[[Any], None]
_NO_NETWORK = (
    "A stream has no base phase to train a network on. Give a trained one with --backbone, and with "
    "--base the number of classes that it was trained on: they take no part."
)
#: Digits of a hash that tell files apart in records, where a whole hash would only hide the rest.
_SHORT = 12


@dataclass(frozen=True)
class PreparedRun:
    """Everything that the jobs of one run share."""

    config: RunConfig
    recipe: Recipe
    #: Its labels are positions in the class order.
    data: Dataset
    #: What to know about data that are the user's own: see `_content`.
    content: Mapping[str, Any]
    #: Classes of the base phase.
    base: int
    #: Features of an image, which a head without expansion learns as they are.
    n_features: int
    device: torch.device
    #: The trained network that was given, and how records name it: its file and its fingerprint.
    backbone: Backbone | None
    backbone_name: str | None
    #: The classifier that was trained with it, if its file has one beside it.
    classifier: Mapping[str, Tensor] | None
    cache: FeatureCache
    progress: ProgressListener | None
    #: Processes that do the jobs together; mostly this one alone.
    group: Group

    @property
    def protocol(self) -> Protocol:
        """Which samples come when, and what is measured beside accuracies."""
        return PROTOCOLS[self.config.protocol]

    @property
    def n_classes(self) -> int:
        """Classes of all phases together."""
        return len(self.data.class_names)

    @property
    def dataset(self) -> str:
        """How records name the data set: without the folders above it, which are the machine's own."""
        return dataset_name(self.config.dataset)

    @property
    def resolved(self) -> dict[str, Any]:
        """What followed from the settings, for readers of config.toml."""
        return {
            "dataset": "@".join([self.dataset, *([self.content["identity"]] if self.content else [])]),
            "backbone": self.backbone_name or self.recipe.backbone,
            "recipe": to_dict(self.recipe),
            "n_classes": self.n_classes,
            "base": self.config.base or self.base,
            "class_names": list(self.data.class_names),
            "skipped": len(self.data.skipped),
        }

    def plan(self) -> list[Job]:
        """Return the jobs of a run, seed by seed so that a base network is used while it is warm.

        A method whose state does not depend on the grouping of classes into phases learns in the finest
        grouping asked for; groupings whose phases end at the same classes are read off on the way.
        """
        config, chosen = self.config, self.config.settings
        _check_names(chosen, config.methods)
        by_method = {}
        for name in config.methods:
            method = resolve(name)
            # A user's own method may have an expansion without saying so.
            expands = ":" in name or method.analytic_heads > 0
            by_method[name] = variants(config.suite, chosen, method.recorded_settings(chosen), expands)
        skipped = self.left_out
        methods = [name for name in config.methods if name not in skipped]
        if not methods:
            raise InputError(f"{told_left_out(skipped)} Name others, such as --method acil,ncm.")
        trains_base = self.backbone is None and self.data.train.has_pixels
        if trains_base and not self.base and not any(":" in name for name in methods):
            raise InputError(_NO_NETWORK if self.protocol.classes_return else NO_BASE)
        jobs = [
            Job(name, settings, seed, max(covers.values(), key=len), covers)
            for seed in config.seeds
            for name in methods
            for settings in by_method[name]
            for covers in self._groupings(seed, self._serves_all(resolve(name)))
            if any(has_column(config.suite, name, k, config.dataset) for k in covers)
        ]
        if not jobs:
            raise InputError(
                f"The paper's table has no result of {', '.join(methods)} with K = "
                f"{', '.join(map(str, config.phases))}. Leave out --suite {config.suite}."
            )
        for job in jobs:
            # What cannot be set is refused before hours of training.
            resolve(job.method).check(self.context(job, None))
        return jobs

    def _serves_all(self, planning: Planning) -> bool:
        """Say whether one run of a method gives the results of every grouping."""
        same_beginning = self.base > 0 or not planning.first_phase_matters
        return planning.grouping_free and same_beginning

    def _groupings(self, seed: int, together: bool) -> list[dict[int, Grouping]]:
        """Return what the jobs of a method cover with a seed: each K alone, or several in one pass."""
        asked, protocol = self.config.phases, self.protocol
        if isinstance(protocol, SiBlurry):
            return [{k: protocol.grouping(self.data, k, seed)} for k in asked]
        groupings = {k: phases(self.n_classes, self.base, k) for k in asked}
        return families(groupings) if together else [{k: grouping} for k, grouping in groupings.items()]

    @property
    def left_out(self) -> dict[str, str]:
        """The methods that cannot learn these data with this network and protocol, and why."""
        reasons = {}
        for name in self.config.methods:
            method = resolve(name)
            why = method.refusal(self.data.train, self.config.settings)
            if method.trains_network and isinstance(self.backbone, UntrainableBackbone):
                why = "this network cannot be trained"
            if self.protocol.classes_return and not method.classes_return:
                why = f"it cannot learn classes that come back, as they do in {self.config.protocol}"
            if why:
                reasons[name] = why
        return reasons

    def is_finished(self, job: Job, done: Set[tuple[Any, ...]]) -> bool:
        """Say whether a job has a summary for each of its K; see `acil.bench.records.finished`."""
        return all(key(self.labels(job, k)) in done for k in job.covers)

    def labels(self, job: Job, phases: int) -> dict[str, Any]:
        """Return what identifies the records of one job and one number of phases."""
        return {
            "suite": self.config.suite,
            "method": job.method,
            "dataset": self.dataset,
            "order": self.config.order,
            "recipe": self.recipe.name,
            "settings": self._settings(job),
            "seed": job.seed,
            "phases": phases,
        }

    def _settings(self, job: Job) -> dict[str, Any]:
        recipe, config = self.recipe, self.config
        return {
            "expansion_size": recipe.expansion_size,
            "gamma": recipe.gamma,
            "dtype": recipe.dtype,
            "solver": "gram",
            "taps": list(recipe.features.taps),
            **self._named_protocol,
            "base": self.config.base or self.base,
            "classes": self.n_classes,
            "backbone": self.backbone_name or recipe.backbone,
            **{f"recipe.{name}": value for name, value in config.recipe_changes.items()},
            **{f"data.{name}": v for name, v in {**data_options(config), **self.content}.items()},
            **job.settings,
            **resolve(job.method).recorded_settings(job.settings),
        }

    @property
    def _named_protocol(self) -> dict[str, str]:
        """The protocol in identities, where the usual one goes without saying."""
        usual = self.config.protocol == RunConfig.protocol
        return {} if usual else {"protocol": self.config.protocol}

    def context(self, job: Job, base_folder: Callable[[str], Path] | None) -> Context:
        """Return what a method may use beside the data of the present phase.

        ``base_folder`` gives the folder that belongs to a digest of everything that decides the base
        network; None keeps no files.
        """
        identity = self.base_identity(job.seed)
        return Context(
            recipe=self.recipe,
            seed=job.seed,
            device=self.device,
            n_classes=self.n_classes,
            settings=job.settings,
            backbone=self.backbone,
            classifier=self.classifier,
            identity={**identity, "trained_on": list(self.data.class_names[: self.base])},
            cache=self.cache,
            checkpoint=None if base_folder is None else base_folder(digest(identity)),
            progress=self.progress,
            group=self.group if self.group.size > 1 else None,
            recipe_changes=frozenset(self.config.recipe_changes),
            phase_sizes=self.phase_sizes(job),
        )

    def phase_sizes(self, job: Job) -> tuple[int, ...]:
        """Return the number of training images of each phase of a job."""
        return self.protocol.sizes(self.data, job)

    def base_identity(self, seed: int) -> dict[str, Any]:
        """Return what a trained base network must remember, and no other network shares."""
        options = data_options(self.config)
        return {
            "dataset": self.dataset,
            "order": self.config.order,
            "classes": self.n_classes,
            "base_classes": self.base,
            "seed": seed,
            "recipe": self.recipe.name,
            "training": to_dict(self.recipe),
            **self._named_protocol,
            **self.content,
            **({"data": options} if options else {}),
        }


def prepare(
    config: RunConfig,
    out: Path | None = None,
    progress: ProgressListener | None = None,
    group: Group | None = None,
    outline: bool = False,
) -> PreparedRun:
    """Load data and network, and check that they fit the protocol.

    The run directory keeps extracted features; without one they are kept in memory. A process computes
    where its group says. With ``outline`` no image is read where that can be: enough for a plan.
    """
    data = load(
        config.dataset,
        config.root,
        skip_bad=config.skip_bad,
        outline=outline,
        progress=None if progress is None else _told_as_work(progress),
        **config.data,
    )
    content = _content(config, data)
    order = class_order(config.order, len(data.class_names))
    if config.classes is not None:
        if not 1 <= config.classes <= len(order):
            raise InputError(f"classes must be from 1 to {len(order)}, got {config.classes}.")
        order = order[: config.classes]
    protocol = PROTOCOLS[config.protocol]
    data = restrict(protocol.training_data(data), order)
    base = data.default_base if config.base is None else config.base
    if protocol.classes_return:
        base = config.base or 0
    chosen = changed(recipe(config.recipe or data.default_recipe), config.recipe_changes)
    device = resolve_device(config.device, "float64") if group is None else group.device
    backbone = name = classifier = None
    spec = config.backbone or chosen.backbone
    # A name, neither a file nor a network to be trained
    if spec == EFFICIENTNET or (":" in spec and not Path(spec).exists()):
        backbone, name = _named_backbone(spec, device)
    elif config.backbone is not None:
        path = Path(config.backbone)
        backbone, metadata = load_backbone(path, device=device)
        _check_backbone(metadata, config, base, data.class_names[:base])
        classifier = stored_classifier(path, backbone)
        # Behind symbolic links, so that two spellings of one path are one network.
        name = f"{path.resolve().name}@{metadata['fingerprint'][:_SHORT]}"
    if protocol.classes_return:
        # Nothing is trained: what the network was trained on has no place in the stream.
        data, base = restrict(data, _streamed(len(data.class_names), base)), 0
    n_features = _count_features(data, chosen, backbone, device)
    cache = FeatureCache(None if out is None else out / "checkpoint" / "features")
    start = (backbone, name, classifier)
    return PreparedRun(
        config,
        chosen,
        data,
        content,
        base,
        n_features,
        device,
        *start,
        cache,
        progress,
        group or Group(device),
    )


def _streamed(n_classes: int, base: int) -> range:
    """Return the classes of a stream: all but those of the base."""
    if not 0 <= base < n_classes:
        raise InputError(f"base must be from 0 to {n_classes - 1}, or no class is left, got {base}.")
    return range(base, n_classes)


def _told_as_work(progress: ProgressListener) -> Callable[[str, int, int | None], None]:
    """Return what a loader of data tells, as everybody else tells how far something is."""
    started: dict[str, float] = {}
    told = [0.0]

    def tell(what: str, done: int, total: int | None) -> None:
        now = time.monotonic()
        seconds = now - started.setdefault(what, now)
        if total is not None and (now - told[0] >= REPORT_SECONDS or done == total):
            told[0] = now
            progress(Work.at(what, done, total, done, seconds))

    return tell


def _check_names(settings: Mapping[str, Any], methods: Sequence[str]) -> None:
    """Raise an `InputError` if a setting belongs to no method at all, as a misspelt one does."""
    setting_names = [
        resolve(name).setting_names() for name in {*methods, *(available() if settings else ())}
    ]
    if None in setting_names:
        return
    known = {*METHOD_SETTINGS, "widths", "budgets", "increment"}.union(
        *(names or () for names in setting_names)
    )
    for name in settings:
        if name.partition(".")[0] not in known:
            near = difflib.get_close_matches(name, known, 3, 0.5)
            hint = f" Did you mean {' or '.join(near)}?" if near else ""
            raise InputError(f"No method has a setting {name!r}.{hint} See docs/methods.md.")


def told_left_out(left_out: Mapping[str, str]) -> str:
    """Return the sentence about methods that are left out.

    Examples
    --------
    >>> told_left_out({"bic": "no images", "fecam": "negative features", "lwf": "no images"})
    'Left out: bic, lwf (no images); fecam (negative features).'
    """
    reasons = {why: [name for name in left_out if left_out[name] == why] for why in left_out.values()}
    parts = [f"{', '.join(names)} ({why})" for why, names in reasons.items()]
    return f"Left out: {'; '.join(parts)}."


class UntrainableBackbone(Backbone):
    """A network that is not run by torch, such as an ONNX model."""

    def __init__(self, embedder: Embedder) -> None:
        needed = embedder.preprocessing
        channels = len(needed.mean)
        plain = Preprocessing((0.0,) * channels, (1.0,) * channels, needed.size)
        identity = embedder.identity
        facts = {name: identity[name] for name in ("weights", "preprocessing", "engine")}
        super().__init__(embedder.name, embedder.num_features, plain, facts)
        self.embedder = embedder

    def forward(self, x: Tensor) -> Tensor:
        """Return the features of pixels divided by 255; the embedder normalises pixels itself."""
        return self.embedder.embed((255 * x).round().to(torch.uint8).cpu()).to(x.device)


def _named_backbone(spec: str, device: torch.device) -> tuple[Backbone, str]:
    """Return a network that was trained elsewhere, and how records name it."""
    kind, _, rest = spec.partition(":")
    is_module = bool(rest) and kind not in ("timm", "torchvision", "onnx", "module")
    embedder = open_network(f"module:{spec}" if is_module else spec, device)
    name = f"onnx:{Path(rest).name}" if kind == "onnx" else spec
    torch_backbone = embedder.backbone if isinstance(embedder, TorchEmbedder) else None
    return torch_backbone or UntrainableBackbone(embedder), f"{name}@{embedder.weights[:_SHORT]}"


def dataset_name(dataset: str) -> str:
    """Return the name of a data set without the folders of the machine it lies on.

    Examples
    --------
    >>> dataset_name("features:/data/mine/embeddings.npz"), dataset_name("cifar100")
    ('features:embeddings.npz', 'cifar100')
    """
    head, colon, place = dataset.partition(":")
    if not colon or head not in DATASETS:
        return dataset
    return f"{head}:{Path(place).expanduser().resolve().name or 'root'}"


def digest(values: Any) -> str:
    """Return a short hash of values that JSON can write."""
    text = json.dumps(values, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _content(config: RunConfig, data: Dataset) -> dict[str, Any]:
    """Return which images those of a user's own folder or file are, and how many were left out.

    Data sets that ship or are fetched are the same everywhere; their name says it all.
    """
    named = ":" not in config.dataset and config.dataset not in WITH_PLACE
    if named and not data.skipped:
        return {}
    left_out = {"skipped": len(data.skipped)} if data.skipped else {}
    return {"identity": data.identity[:_SHORT], **left_out}


def _check_backbone(
    metadata: Mapping[str, Any], config: RunConfig, base: int, names: Sequence[str]
) -> None:
    """Refuse a network that has seen classes which this run calls new."""
    dataset, order = dataset_name(config.dataset), str(metadata.get("order", config.order))
    with suppress(InputError):  # an order of a newer version: certainly not this run's
        order = canonical_order(order)
    checks = {
        "dataset": (dataset_name(str(metadata.get("dataset", dataset))), dataset),
        "order": (order, config.order),
        "base": (max(base, int(metadata.get("base_classes", base))), base),
    }
    for name, (stored, wanted) in checks.items():
        if stored != wanted:
            raise InputError(
                f"The backbone {config.backbone} was trained with {name} = {stored!r}, but this run has "
                f"{wanted!r}: it would have seen classes that are called new. Take another backbone or "
                f"set --{name} {stored}."
            )
    others = sorted({*metadata.get("trained_on", ())} - {*names})
    if others:
        raise InputError(
            f"The backbone {config.backbone} was trained on {first_of(others)}, which this run does not "
            "have among its base classes: they would be called new. Take another backbone."
        )


def _count_features(
    data: Dataset, chosen: Recipe, backbone: Backbone | None, device: torch.device
) -> int:
    """Put a blank image through the network: what does not fit is reported before hours of training."""
    if not data.train.has_pixels:
        return int(data.train.shape[0])
    network = backbone or build(chosen.backbone, **dict(chosen.backbone_options))
    blank = ImageSet(torch.zeros(1, *data.train.shape, dtype=torch.uint8), None, "")
    try:
        extractor = FeatureExtractor(network, chosen.features, device, batch_size=1)
        return int(extractor.features(blank).shape[1])
    except InputError as error:
        needed, side = network.preprocessing.size, data.train.shape[-1]
        if needed == side:
            raise
        raise InputError(
            f"{error} Images of a folder are loaded in another size with --set data.size={needed}. A "
            "recipe's network is built for these images with --set "
            f"recipe.backbone_options.size={side}, where it can be. A module of your own says what it "
            "takes by its attribute `preprocessing`."
        ) from error
