"""One state of a classifier, never changed once made, and the hashes of what it has learnt."""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from acil.core.classifier import ACILClassifier, holding, learnt_of
from acil.core.expansion import Frozen
from acil.core.files.header import in_order
from acil.core.inputs import Rows
from acil.core.ridge import Ridge
from acil.core.scores import Discriminant
from acil.encoders.images.listing import UNKNOWN, first_of
from acil.encoders.samples import Samples
from acil.errors import InputError
from acil.growing.results import Prediction

logger = logging.getLogger(__name__)

#: Relative novelty beyond which an image is unknown: that of 5 % of the images of classes learnt, as
#: measured on the images learnt, each scored as if it had been left out.
UNKNOWN_ABOVE = 1.0
#: Images whose hashes fit into the header of a file.
MAX_TRACKED = 1_000_000
#: Different texts of a call that is tracked, at least: fewer could be guessed.
LEAST_TRACKED = 10


class SaltedHashes(NamedTuple):
    """Hashes that were made with one salt."""

    salt: str
    hashes: frozenset[str]  # of images
    placed: frozenset[str]  # of images together with their classes, as these were called then
    renamed: tuple[tuple[str, str], ...] = ()  # name of a class then, and now, where they differ

    def then(self, name: str) -> list[str]:
        """Return what a class was called when its images were hashed.

        That is more than one name if it was made of several, none if another class had this name.
        """
        former = [old for old, new in self.renamed if new == name]
        return former if name in dict(self.renamed) else [*former, name]


@dataclass(frozen=True)
class Tracker:
    """Salted hashes of images and of their classes; never changed, only replaced.

    The salt is random and stands in the file: it keeps hashes of two models from being compared, but
    whoever has the file and an image can tell whether the model has learnt that image, and as what.

    Examples
    --------
    >>> tracker = Tracker.new().with_added(["aa", "bb"], ["cat", "dog"])
    >>> tracker.repeated(["cc", "aa", "cc"])
    [1, 2]
    """

    #: What it has hashes of.
    things: ClassVar[str] = "images"
    groups: tuple[SaltedHashes, ...] = ()  # several after merging models that were made apart

    @classmethod
    def new(cls) -> Self:
        """Return a tracker that has seen nothing, with a salt of its own."""
        return cls((SaltedHashes(secrets.token_hex(16), frozenset(), frozenset()),))

    @property
    def active(self) -> bool:
        """Whether images are tracked."""
        return bool(self.groups)

    def __len__(self) -> int:
        return sum(len(group.hashes) for group in self.groups)

    def repeated(self, digests: Sequence[str]) -> list[int]:
        """Return which of these images have been learnt, or have come before in the same list."""
        first: dict[str, int] = {}
        return [
            i
            for i, digest in enumerate(digests)
            if self.active and (first.setdefault(digest, i) != i or any(self._with(digest)))
        ]

    def known(self, digests: Sequence[str]) -> int:
        """Return how many of these images it knows."""
        return sum(any(self._with(digest)) for digest in {*digests})

    def misplaced(self, digests: Sequence[str], names: Sequence[str]) -> list[int]:
        """Return which of these images, of classes of these names, were learnt as other classes."""
        return [
            i
            for i, (digest, name) in enumerate(zip(digests, names, strict=True))
            if any(self._with(digest)) and not any(self._with(digest, name))
        ]

    def with_added(self, digests: Sequence[str], names: Sequence[str]) -> Self:
        """Return a tracker that knows these images and their classes too."""
        if not self.active or not digests:
            return self
        # To a group that was hashed before classes were renamed, a name means what it meant then.
        groups = self.new().groups + self.groups if self.groups[0].renamed else self.groups
        (salt, hashes, placed, _), *others = groups
        hashes |= {_salted(digest, salt) for digest in digests}
        placed |= {_placed(*pair, salt) for pair in zip(digests, names, strict=True)}
        return replace(self, groups=(SaltedHashes(salt, hashes, placed), *others))

    def renamed(self, names: Mapping[str, str]) -> Self:
        """Return a tracker that knows classes under other names: the new name of each that gets one."""
        groups = []
        for group in self.groups:
            now = {old: names.get(new, new) for old, new in group.renamed}
            now = {**names, **now} if group.hashes else {}
            groups.append(
                group._replace(
                    renamed=tuple(sorted((old, new) for old, new in now.items() if old != new))
                )
            )
        return replace(self, groups=tuple(groups))

    def require_learnt(self, samples: Samples, complete: bool) -> None:
        """Raise unless these samples may be forgotten.

        Unless ``complete`` says that all images of the model are tracked, one that is not known may be
        one of those learnt before.
        """
        digests, names = samples.digests, samples.names
        first: dict[str, int] = {}
        misplaced = self.misplaced(digests, names)
        strange = [i for i, digest in enumerate(digests) if not any(self._with(digest))]
        repeated = [i for i, digest in enumerate(digests) if first.setdefault(digest, i) != i]
        another = f"were learnt as another class than {names[misplaced[0]]!r}" if misplaced else ""
        for places, fault, cure in (
            (misplaced, another, "Give the class under which they were learnt."),
            (complete and strange, "were never learnt", "Give the files that were learnt."),
            (complete and repeated, "are given twice", "Give each image once."),
        ):
            if places:
                some = first_of([samples.images[i] for i in places])
                raise InputError(f"{len(places)} of {len(digests)} images {fault} ({some}). {cure}")

    def without(self, digests: Sequence[str], names: Sequence[str]) -> Self:
        """Return a tracker that has never seen these images.

        Of one that two models had learnt before they were merged, the other copy stays.
        """
        gone: dict[SaltedHashes, list[tuple[str, str]]] = {group: [] for group in self.groups}
        for digest, name in zip(digests, names, strict=True):
            for group in islice(self._with(digest, name), 1):
                gone[group].append((digest, name))
        groups = (
            group._replace(
                hashes=group.hashes - {_salted(digest, group.salt) for digest, _ in pairs},
                placed=group.placed
                - {
                    _placed(digest, then, group.salt)
                    for digest, name in pairs
                    for then in group.then(name)
                },
            )
            for group, pairs in gone.items()
        )
        return replace(self, groups=tuple(groups))

    def merged(self, other: Tracker) -> Self:
        """Return a tracker that knows the images of both."""
        groups = list(self.groups)
        for theirs in other.groups:
            ours = [group for group in groups if group.salt == theirs.salt]
            common = sum(len(group.hashes & theirs.hashes) for group in ours)
            if common:
                raise InputError(
                    f"{common} {self.things} have been learnt by both models, which have a "
                    "common past: merged, they would count twice. Forget them in one of the models."
                )
            alike = next((group for group in ours if group.renamed == theirs.renamed), None)
            if alike is None:
                groups.append(theirs)
            else:
                hashes, placed = alike.hashes | theirs.hashes, alike.placed | theirs.placed
                groups[groups.index(alike)] = alike._replace(hashes=hashes, placed=placed)
        return replace(self, groups=tuple(groups))

    def to_list(self) -> list[dict[str, Any]]:
        """Return the groups as JSON has them."""
        return [
            {"salt": group.salt, "hashes": sorted(group.hashes), "placed": sorted(group.placed)}
            | ({"renamed": dict(group.renamed)} if group.renamed else {})
            for group in self.groups
        ]

    @classmethod
    def from_list(cls, groups: Sequence[Mapping[str, Any]]) -> Self:
        """Return the tracker of a model file, whose header has been checked."""
        return cls(
            tuple(
                SaltedHashes(
                    group["salt"],
                    frozenset(group["hashes"]),
                    frozenset(group["placed"]),
                    tuple(sorted(group.get("renamed", {}).items())),
                )
                for group in groups
            )
        )

    def _with(self, digest: str, name: str | None = None) -> Iterator[SaltedHashes]:
        """Yield the groups that know an image, of a class: one at most, unless models were merged."""
        for group in self.groups:
            placed = name is None or any(
                _placed(digest, then, group.salt) in group.placed for then in group.then(name)
            )
            if placed and _salted(digest, group.salt) in group.hashes:
                yield group


class CallTracker(Tracker):
    """Salted digests of calls that taught several texts, instead of hashes of single ones.

    Short texts can be guessed, and a hash that stands beside its salt tells whether a guess is right.
    The digest of a call tells it to those alone who guess all of its texts.

    Examples
    --------
    >>> texts = [f"text {number}" for number in range(12)]
    >>> tracker = CallTracker.new().with_added(texts, ["a class"] * 12)
    >>> len(tracker), tracker.repeated(texts[::-1]) == [*range(12)], tracker.repeated(texts[:11])
    (1, True, [])
    """

    things: ClassVar[str] = "calls of texts"

    def repeated(self, digests: Sequence[str]) -> list[int]:
        """Return all places if the same texts were learnt in one call, else none."""
        return [*range(len(digests))] if super().known(_call(digests)) else []

    def known(self, digests: Sequence[str]) -> int:
        """Return how many of these texts it knows: all, or none."""
        return len(self.repeated(digests))

    def misplaced(self, digests: Sequence[str], names: Sequence[str]) -> list[int]:
        """Return no text: classes are not tracked."""
        return []

    def with_added(self, digests: Sequence[str], names: Sequence[str]) -> Self:
        """Return a tracker that knows this call too."""
        call = _call(digests)
        return super().with_added(call, [""] * len(call))

    def renamed(self, names: Mapping[str, str]) -> Self:
        """Return this tracker: classes are not tracked."""
        return self

    def require_learnt(self, samples: Samples, complete: bool) -> None:
        """Raise nothing: what was learnt is not known text by text."""

    def without(self, digests: Sequence[str], names: Sequence[str]) -> Self:
        """Return a tracker that has never seen this call."""
        call = _call(digests)
        return super().without(call, [""] * len(call))


def _call(digests: Sequence[str]) -> list[str]:
    """Return the digest of a call, whatever its order; none of a call of few texts."""
    if len({*digests}) < LEAST_TRACKED:
        return []
    return [hashlib.blake2b("/".join(sorted(digests)).encode(), digest_size=32).hexdigest()]


def _salted(text: str, salt: str) -> str:
    return hashlib.blake2b(text.encode(), key=bytes.fromhex(salt), digest_size=16).hexdigest()


def _placed(digest: str, name: str, salt: str) -> str:
    # A digest is hexadecimal, so the "/" cannot be part of it: pairs are unambiguous.
    return _salted(f"{digest}/{name}", salt)


@dataclass(frozen=True)
class Snapshot:
    """What predictions need, ready to be used by any number of threads."""

    #: Nothing may call a method of it that changes it. Weights are solved when first needed.
    head: ACILClassifier
    tracker: Tracker

    @classmethod
    def of(cls, head: ACILClassifier, tracker: Tracker, source: str | None) -> Snapshot:
        """Make a snapshot of a head that nobody else changes, with a network that was named so."""
        if len(tracker) > MAX_TRACKED:
            logger.warning("More than %d %s: their hashes are not kept.", *(MAX_TRACKED, tracker.things))
            tracker = type(tracker)()
        made = cls(head, tracker)
        if made.identity is not None:
            head.images_ = {"source": source, "tracked": tracker.to_list()}
        return made

    @property
    def can_learn(self) -> bool:
        """Whether it can be changed: a private release cannot, although it has sums."""
        state = learnt_of(self.head)
        private = state.release is not None and state.release["private"]
        return not isinstance(state.model.head, Frozen) and not private

    @property
    def knows_novelty(self) -> bool:
        """Whether it can say what is unknown, which needs exact sums, and their calibration."""
        state = learnt_of(self.head)
        calibrated = state.calibration is not None or not state.is_discriminant
        return self.can_learn and isinstance(state.model.head, Ridge) and calibrated

    @property
    def identity(self) -> dict[str, Any] | None:
        """Identity of the network; None of a model that was learnt from features."""
        return getattr(self.head, "backbone_", None)

    @property
    def thing(self) -> str:
        """What a sample is called: "text", or "image", also of a model that was learnt from features."""
        return "text" if getattr(self.head, "encoder_", None) == "text" else "image"

    @property
    def source(self) -> str | None:
        """How the network was named."""
        return None if self.identity is None else self.head.images_["source"]

    def copy_head(self) -> ACILClassifier:
        """Return a copy of the head, for changing; raise if it can only predict."""
        learnt_of(self.head).model.learner  # noqa: B018 (raises)
        return self.head.copy()

    def solved(self) -> ACILClassifier:
        """Return the head with all that predictions need, which it computes once."""
        with holding(self.head, counted=True) as state:
            state.temperature()
            if self.knows_novelty:
                Discriminant.of(state.model)
        return self.head

    @property
    def totals(self) -> dict[str, int]:
        """Number of images of each class, in the order for people."""
        names = map(str, self.head.classes_.tolist())
        counts = dict(zip(names, self.head.class_count_.tolist(), strict=True))
        return {name: counts[name] for name in in_order(counts)}

    def classify(
        self,
        features: npt.NDArray[np.float32] | Rows,
        images: Sequence[str],
        top: int,
        unknown_above: float | None,
        given: Sequence[str] | None = None,
    ) -> list[Prediction]:
        """Return what the model says of images of these names, from their features.

        ``given`` are the classes that are said to be the true ones.
        """
        if not len(features):
            return []
        head = self.solved()
        probabilities = head.predict_proba(features)
        best = np.argsort(-probabilities, axis=1, kind="stable")[:, :top]
        novelties: list[float | None] = [None] * len(features)
        if self.knows_novelty:
            novelties = head.relative_novelty(features).tolist()
        classes = head.classes_
        place = {str(name): column for column, name in enumerate(classes.tolist())}
        names = [""] * len(features) if given is None else given
        predictions = []
        for image, row, columns, novelty, name in zip(
            images, probabilities, best, novelties, names, strict=True
        ):
            likeliest = tuple((str(classes[c]), float(row[c])) for c in columns)
            unknown = novelty is not None and unknown_above is not None and novelty > unknown_above
            label = UNKNOWN if unknown else likeliest[0][0]
            share = float(row[place[name]]) if name in place else None
            thing = self.thing
            predictions.append(
                Prediction(image, label, unknown, likeliest, novelty, given=share, thing=thing)
            )
        return predictions

    def suggest(self, samples: Samples) -> list[Prediction]:
        """Return what the model says of samples that it has not learnt, the best to learn next first."""
        first = {digest: i for i, digest in reversed([*enumerate(samples.digests)])}
        again = [i for i, digest in enumerate(samples.digests) if first[digest] != i]
        fresh = samples.without([*self.tracker.repeated(samples.digests), *again])
        found = self.classify(fresh.rows_for(self.head), fresh.images, 3, UNKNOWN_ABOVE)
        found.sort(key=lambda sample: (sample.closeness, sample.novelty or 0.0), reverse=True)
        return found
