"""Settings: frozen dataclasses, to and from text, JSON and dotted keys; and what a training is told."""

from __future__ import annotations

import dataclasses
import json
import math
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from acil.bench.training.augment import check_names
from acil.errors import InputError

Schedule = Literal["step", "cosine"]
TrainingPrecision = Literal["float32", "tf32", "bf16", "fp16"]

#: Where the cosine ends, so that the last epoch still moves.
COSINE_END = 1e-6
#: Whole turns of a copy, in quarters, for each number of angles.
ANGLES = {1: (0,), 2: (0, 2), 4: (0, 1, 2, 3)}
#: Orders of the channels of a copy, the usual one first: rotated, then with two channels swapped.
COLOURS = ((0, 1, 2), (1, 2, 0), (2, 0, 1), (0, 2, 1), (1, 0, 2), (2, 1, 0))

T = TypeVar("T")

_WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_NAMES: dict[Any, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
_NAMES[type(None)] = "none"
#: What a number may have to be.
_RULES: dict[str, Callable[[float], bool]] = {
    "at least 0": lambda number: 0 <= number < math.inf,
    "at least 1": lambda number: 1 <= number < math.inf,
    "positive": lambda number: 0 < number < math.inf,
    "from 0 to 1": lambda number: 0 <= number <= 1,
    "above 0 and at most 1": lambda number: 0 < number <= 1,
    "above 0 and below 1": lambda number: 0 < number < 1,
    "at least 0 and below 1": lambda number: 0 <= number < 1,
    "from 1 to 6": lambda number: 1 <= number <= 6,
    "1, 2 or 4": lambda number: number in (1, 2, 4),
}


@dataclass(frozen=True)
class Settings:
    """Settings whose numbers keep to the rule beside their type, such as Annotated[int, "at least 0"].

    A rule is a key of ``_RULES``. Of a tuple, each entry must keep to it; None need not. A value of a
    ``Literal`` must be one of those.

    Examples
    --------
    >>> from acil.bench.training.settings import Training
    >>> Training(epochs=-1)
    Traceback (most recent call last):
    acil.errors.InputError: Training setting epochs must be at least 0. Got -1 instead.
    """

    #: Stands before the name of a setting in messages.
    where: ClassVar[str] = ""

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self), include_extras=True)
        for name in (part.name for part in dataclasses.fields(self)):
            value, kind = getattr(self, name), hints[name]
            rule, holds = "", True
            if hasattr(kind, "__metadata__"):
                (rule,) = kind.__metadata__
                parts = value if isinstance(value, tuple) else (value,)
                holds = all(_RULES[rule](part) for part in parts if isinstance(part, int | float))
            elif get_origin(kind) is Literal:
                rule, holds = f"one of {', '.join(map(str, get_args(kind)))}", value in get_args(kind)
            if not holds:
                raise InputError(f"{self.where}{name} must be {rule}. Got {value!r} instead.")


def to_values(settings: Any) -> dict[str, Any]:
    """Return a dataclass as JSON has it: dictionaries, lists, numbers, text."""
    values: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(settings)))
    return values


def read_settings(kind: type[T], values: Mapping[str, Any], called: Callable[[str], str] = str) -> T:
    """Return a dataclass with defaults, filled from what the user set; text is read as the field's type.

    The user's name of a field is what ``called`` makes of it. Names that are not of its fields are left
    alone, since they may belong to another method of a run.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Settings:
    ...     temperature: float = 2.0
    >>> read_settings(Settings, {"temperature": "3", "gamma": 0.1})
    Settings(temperature=3.0)
    """
    hints = get_type_hints(kind)
    names = {field.name: called(field.name) for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    present = {field: name for field, name in names.items() if name in values}
    return kind(**{field: convert(values[name], hints[field], name) for field, name in present.items()})


def changed(settings: T, changes: Mapping[str, Any]) -> T:
    """Return a copy with some values replaced, named by dotted keys: ``{"training.epochs": "3"}``.

    Settings may hold other dataclasses and mappings, which take any key. Text is read as the field's
    type, lists by commas.

    Examples
    --------
    >>> from acil.bench.training.recipes import recipe
    >>> short = changed(recipe("paper"), {"training.epochs": "3", "features.mirror": "true"})
    >>> short.training.epochs, short.features.mirror
    (3, True)
    """
    known = sorted(keys(settings))
    for key in changes:
        if not {key, f"{key}.KEY", f"{key.rpartition('.')[0]}.KEY"} & set(known):
            raise InputError(f"There is no setting {key!r}. Known: {', '.join(known)}.")
    made: T = _changed(settings, changes, "")
    return made


def _changed(settings: Any, changes: Mapping[str, Any], where: str) -> Any:
    hints, new = get_type_hints(type(settings)), {}
    for name in dict.fromkeys(key.partition(".")[0] for key in changes):
        value = getattr(settings, name)
        if name in changes:
            value = convert(changes[name], hints[name], where + name)
        inner = {key[len(name) + 1 :]: v for key, v in changes.items() if key.startswith(f"{name}.")}
        if inner and isinstance(value, Mapping):
            value = {**value, **{key: parse_value(entry) for key, entry in inner.items()}}
        elif inner:
            value = _changed(value, inner, f"{where}{name}.")
        new[name] = value
    return dataclasses.replace(settings, **new)


def keys(settings: Any, where: str = "") -> Iterator[str]:
    """Yield every dotted key that :func:`changed` takes; ``KEY`` stands for any key of a mapping."""
    for part in dataclasses.fields(settings):
        value = getattr(settings, part.name)
        if dataclasses.is_dataclass(value):
            yield from keys(value, f"{where}{part.name}.")
        else:
            yield f"{where}{part.name}" + (".KEY" if isinstance(value, Mapping) else "")


def convert(value: Any, kind: Any, where: str) -> Any:
    """Return a value, which may be text, as a field's type, or say what was expected."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _convert_union(value, arguments, where)
    if origin is Literal:
        if value in arguments:
            return value
        raise _mismatch(where, f"one of {', '.join(map(str, arguments))}", value)
    if origin is tuple:
        if isinstance(value, str):
            value = [part.strip() for part in value.split(",") if part.strip()]
        if not isinstance(value, list | tuple):
            raise _mismatch(where, "a list", value)
        return tuple(convert(part, arguments[0], where) for part in value)
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise _mismatch(where, "a table of values", value)
        return {str(name): parse_value(entry) for name, entry in value.items()}
    return _convert_scalar(value, kind, where)


def _convert_union(value: Any, kinds: tuple[Any, ...], where: str) -> Any:
    if type(None) in kinds and (value is None or value in ("none", "None", "")):
        return None
    for kind in kinds:
        if kind is not type(None):
            try:
                return convert(value, kind, where)
            except InputError:
                continue
    names = [part for kind in kinds for part in (get_args(kind) or [kind])]
    raise _mismatch(where, " or ".join(_NAMES.get(kind, str(kind)) for kind in names), value)


def _convert_scalar(value: Any, kind: Any, where: str) -> Any:
    if kind is bool and isinstance(value, str) and value.lower() in _WORDS:
        return _WORDS[value.lower()]
    if kind in (int, float) and isinstance(value, str):
        try:
            return kind(value)
        except ValueError:
            raise _mismatch(where, _NAMES[kind], value) from None
    if isinstance(value, bool) == (kind is bool):
        if isinstance(value, kind):
            return value
        if kind is float and isinstance(value, int):
            return float(value)
    raise _mismatch(where, _NAMES.get(kind, kind.__name__), value)


def parse_value(value: Any) -> Any:
    """Return the number, truth value, list or None that a text stands for, else the text."""
    if str(value).lower() in ("none", "null"):
        return None
    try:
        return json.loads(value) if isinstance(value, str) else value
    except json.JSONDecodeError:
        return value


def _mismatch(where: str, expected: str, value: Any) -> InputError:
    return InputError(f"Setting {where} must be {expected}. Got {value!r} instead.")


def check_rising(name: str, milestones: tuple[int, ...]) -> None:
    """Raise unless milestones are in rising order."""
    if list(milestones) != sorted(set(milestones)):
        raise InputError(f"{name} must be in rising order. Got {milestones}.")


@dataclass(frozen=True)
class Auxiliary(Settings):
    """Tasks that shape the features and are gone when training ends; by default there is none.

    They act in the default objective, on networks that have features and a classifier.

    Examples
    --------
    >>> rotation = Auxiliary(copies=1)
    >>> rotation.transformations, rotation.views, rotation.inputs_per_image
    (4, 2, 2)
    """

    where: ClassVar[str] = "Training setting auxiliary."
    #: Copies of each image, augmented anew, turned and recoloured at random. A linear layer of its own
    #: tells class, angle and colours of a copy. Each copy costs as much as the image itself.
    copies: Annotated[int, "at least 0"] = 0
    #: Angles of a copy: 0; 0 and 180; 0, 90, 180 and 270 degrees.
    angles: Annotated[int, "1, 2 or 4"] = 4
    #: Orders of the colour channels of a copy; 1 is the usual one alone.
    colours: Annotated[int, "from 1 to 6"] = 1
    #: Whether a copy has any angle with any colours (``angles * colours`` labels a class), or is either
    #: turned or recoloured (``angles + colours - 1``).
    crossed: bool = False
    #: Of the loss of the copies; the classification of images has 1.
    weight: Annotated[float, "positive"] = 1.0
    #: Share of images that are mixed with another one of the batch, λ x + (1 - λ) x', with λ uniform
    #: between 0 and 1; their losses are mixed in the same way.
    mixup: Annotated[float, "from 0 to 1"] = 0.0
    #: Weight of the supervised contrastive loss over all copies; without any, over two augmentations of
    #: each image.
    contrast: Annotated[float, "at least 0"] = 0.0
    #: Share w of the loss that follows teachers: (1 - w) · cross entropy + w · T² · distillation.
    distillation: Annotated[float, "from 0 to 1"] = 0.0
    #: Networks that are trained first, with the same settings but no distillation; their mean score is
    #: what ``distillation`` follows.
    teachers: Annotated[int, "at least 1"] = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.colours > 1 and not self.copies:
            raise InputError(f"{self.where}colours is about copies, and there are none. Set copies=1.")

    @property
    def active(self) -> bool:
        """Whether there is any task."""
        return self.copies > 0 or self.mixup > 0 or self.contrast > 0 or self.distillation > 0

    @property
    def transformations(self) -> int:
        """Labels that each class is split into for its copies."""
        return self.angles * self.colours if self.crossed else self.angles + self.colours - 1

    @property
    def views(self) -> int:
        """Augmentations of an image that a step sees."""
        return 1 + max(self.copies, 1 if self.contrast else 0)

    @property
    def draws(self) -> int:
        """Random numbers that a step needs for each image."""
        return self.copies + (1 if self.mixup else 0)

    @property
    def inputs_per_image(self) -> int:
        """Network inputs that one image costs in an epoch, teachers' training included."""
        return self.views * (1 + (self.teachers if self.distillation else 0))


@dataclass(frozen=True)
class Training(Settings):
    """Settings of one training by stochastic gradient descent."""

    where: ClassVar[str] = "Training setting "
    #: Left out where they are not used: what earlier versions have trained is found by a hash.
    LATER: ClassVar[tuple[str, ...]] = ("crop_size",)
    epochs: Annotated[int, "at least 0"]  # 0 leaves the network as it is
    #: Images in a step; a data set with fewer makes one step an epoch.
    batch_size: Annotated[int, "at least 1"] = 128
    learning_rate: Annotated[float, "positive"] = 0.1  # at its peak
    #: "step" multiplies the rate by ``decay`` at each milestone; "cosine" lets it fall to 1e-6 over the
    #: epochs that follow the warm-up. It is constant within an epoch.
    schedule: Schedule = "step"
    #: Epochs, counted from 0, from which the smaller rate holds; only for "step".
    milestones: tuple[int, ...] = ()
    decay: Annotated[float, "positive"] = 0.1
    #: Epochs over which the rate grows linearly to its peak, which the last of them reaches.
    warmup: Annotated[int, "at least 0"] = 0
    momentum: Annotated[float, "at least 0 and below 1"] = 0.9
    weight_decay: Annotated[float, "at least 0"] = 5e-4
    #: Whether the weight decay acts on normalisation and biases, too, as the papers have it; False
    #: leaves them (parameters of one dimension) alone.
    decay_all: bool = True
    nesterov: bool = False
    label_smoothing: Annotated[float, "at least 0 and below 1"] = 0.0  # only in the default objective
    augment: tuple[str, ...] = ()  # steps of :class:`acil.bench.training.augment.Augmentation`
    #: Side of what "resizedcrop" returns; None: what the network takes when it is tested.
    crop_size: Annotated[int | None, "at least 1"] = field(default=None, repr=False)
    #: "float32" keeps TF32 off, which PyTorch by default allows in convolutions. "tf32" allows it in
    #: convolutions and products. "bf16" and "fp16" run the network under autocast; weights, loss and
    #: optimiser stay in float32. "fp16" has as many digits as TF32, and scales the loss; on a CPU, which
    #: has no fast arithmetic for it, it is float32.
    precision: TrainingPrecision = "float32"
    #: Whether an epoch ends with the smaller batch that remains, or leaves those images out.
    keep_last_batch: bool = True
    #: Whether, on a GPU, the blocks of the network go through ``torch.compile`` first: it pays only for
    #: long trainings. With "fp16", kernels of our own then compute the 3 x 3 convolutions.
    compile: bool = False
    #: Tasks beside classification, only in the default objective. Not in the text that checkpoints of
    #: earlier versions are found by.
    auxiliary: Auxiliary = field(default=Auxiliary(), repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_rising(f"{self.where}milestones", self.milestones)
        if self.nesterov and not self.momentum:
            raise InputError(f"{self.where}nesterov must be used with momentum. Got momentum 0.")
        check_names(self.augment)

    def learning_rate_at(self, epoch: int) -> float:
        """Return the learning rate of one epoch, counted from 0."""
        if epoch < self.warmup:
            return self.learning_rate * (epoch + 1) / self.warmup
        if self.schedule == "step":
            return self.learning_rate * self.decay ** sum(epoch >= m for m in self.milestones)
        fraction = (epoch - self.warmup) / max(1, self.epochs - self.warmup)
        # η_e = η_end + (η - η_end) (1 + cos(π fraction)) / 2
        return COSINE_END + (self.learning_rate - COSINE_END) * (1 + math.cos(math.pi * fraction)) / 2

    @property
    def inputs_per_image(self) -> int:
        """Network inputs of one image in a training with the default objective."""
        return self.epochs * self.auxiliary.inputs_per_image

    def steps_per_epoch(self, n_images: int) -> int:
        """Return how many batches an epoch over so many images has."""
        if n_images <= self.batch_size:
            return 1
        whole, rest = divmod(n_images, self.batch_size)
        # A single image has no mean and deviation that could normalise it.
        return whole + bool(rest > 1 and self.keep_last_batch)
