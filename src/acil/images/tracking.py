"""Which images a model has learnt, as salted hashes: none is learnt twice or forgotten wrongly."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from acil.errors import InputError, ModelFileError

_HASH = re.compile(r"[0-9a-f]{32}")


class Group(NamedTuple):
    """Hashes that were made with one salt.

    Attributes
    ----------
    salt : str
    hashes : frozenset of str
        Of images.
    placed : frozenset of str
        Of images together with their classes. Files of earlier versions have none of these.
    """

    salt: str
    hashes: frozenset[str]
    placed: frozenset[str]


@dataclass(frozen=True)
class Tracker:
    """Salted hashes of images and of their classes; never changed, only replaced.

    Attributes
    ----------
    groups : tuple of Group
        Merging models that were made apart gives several groups.

    Notes
    -----
    The salt is random and stands in the file: it keeps hashes of two models from being compared, but
    whoever has the file and an image can tell whether the model has learnt that image, and as what.

    Examples
    --------
    >>> tracker = Tracker.new().with_added(["aa", "bb"], ["cat", "dog"])
    >>> tracker.known(["cc", "aa"])
    [1]
    """

    groups: tuple[Group, ...] = ()

    @classmethod
    def new(cls) -> Tracker:
        """Return a tracker that has seen nothing, with a salt of its own."""
        return cls((Group(secrets.token_hex(16), frozenset(), frozenset()),))

    @property
    def active(self) -> bool:
        """Whether images are tracked."""
        return bool(self.groups)

    def __len__(self) -> int:
        return sum(len(group.hashes) for group in self.groups)

    def known(self, digests: Sequence[str]) -> list[int]:
        """Return which of these images have been learnt."""
        return [i for i, digest in enumerate(digests) if any(self._with(digest))]

    def repeated(self, digests: Sequence[str]) -> list[int]:
        """Return which of these images have come before in the same list."""
        first: dict[str, int] = {}
        return [i for i, digest in enumerate(digests) if first.setdefault(digest, i) != i]

    def misplaced(self, digests: Sequence[str], names: Sequence[str]) -> list[int]:
        """Return which of these images have been learnt, but as another class."""
        return [
            i
            for i, (digest, name) in enumerate(zip(digests, names, strict=True))
            for group in self._with(digest)
            # Where some have no class on record, this may be one of them.
            if _placed(digest, name, group.salt) not in group.placed
            and len(group.placed) == len(group.hashes)
        ]

    def with_added(self, digests: Sequence[str], names: Sequence[str]) -> Tracker:
        """Return a tracker that knows these images too, or raise if it knows one of them already.

        Parameters
        ----------
        digests : sequence of str
        names : sequence of str
            Class of each image.
        """
        known = self.known(digests) or self.repeated(digests)
        if known:
            raise InputError(
                f"{len(known)} of {len(digests)} images have been learnt already, or are given twice; "
                f"the first is number {known[0] + 1}. This model tracks its images: leave them out."
            )
        (salt, hashes, placed), *others = self.groups
        hashes |= {_salted(digest, salt) for digest in digests}
        placed |= {_placed(*pair, salt) for pair in zip(digests, names, strict=True)}
        return Tracker((Group(salt, hashes, placed), *others))

    def require_learnt(self, digests: Sequence[str], names: Sequence[str], complete: bool) -> None:
        """Raise unless these images may be forgotten.

        Parameters
        ----------
        digests : sequence of str
        names : sequence of str
            Class of each image.
        complete : bool
            Whether all images of the model are tracked. If not, one that is not known may be one of
            those learnt before.
        """
        misplaced = self.misplaced(digests, names)
        if misplaced:
            raise InputError(
                f"{len(misplaced)} of {len(digests)} images were learnt as another class than "
                f"{names[misplaced[0]]!r}; the first is number {misplaced[0] + 1}. Give the class under "
                "which they were learnt."
            )
        repeated = self.repeated(digests)
        strange = len(digests) - len(self.known(digests))
        if complete and strange:
            raise InputError(
                f"{strange} of {len(digests)} images were never learnt. Give the files that were learnt."
            )
        if complete and repeated:
            raise InputError(
                f"{len(repeated)} of {len(digests)} images are given twice; the first is number "
                f"{repeated[0] + 1}. Give each image once."
            )

    def without(self, digests: Sequence[str], names: Sequence[str]) -> Tracker:
        """Return a tracker that has never seen these images."""
        pairs = list(zip(digests, names, strict=True))
        groups = (
            Group(
                salt,
                hashes - {_salted(digest, salt) for digest in digests},
                placed - {_placed(*pair, salt) for pair in pairs},
            )
            for salt, hashes, placed in self.groups
        )
        return Tracker(tuple(groups))

    def merged(self, other: Tracker) -> Tracker:
        """Return a tracker that knows the images of both."""
        mine = {group.salt: group for group in self.groups}
        for theirs in other.groups:
            ours = mine.get(theirs.salt, Group(theirs.salt, frozenset(), frozenset()))
            common = ours.hashes & theirs.hashes
            if common:
                raise InputError(
                    f"{len(common)} images have been learnt by both models, which have a "
                    "common past: merged, they would count twice. Forget them in one of the models."
                )
            mine[theirs.salt] = Group(
                theirs.salt, ours.hashes | theirs.hashes, ours.placed | theirs.placed
            )
        return Tracker(tuple(mine.values()))

    def to_list(self) -> list[dict[str, Any]]:
        """Return the groups as JSON has them."""
        return [
            {"salt": salt, "hashes": sorted(hashes), "placed": sorted(placed)}
            for salt, hashes, placed in self.groups
        ]

    @classmethod
    def from_list(cls, groups: Any) -> Tracker:
        """Return the tracker of a model file, or say that the file is damaged."""
        try:
            read = tuple(
                Group(group["salt"], frozenset(group["hashes"]), frozenset(group.get("placed", ())))
                for group in groups
            )
        except (TypeError, KeyError, AttributeError) as error:
            raise ModelFileError(f"The hashes of tracked images are damaged ({error}).") from None
        for salt, hashes, placed in read:
            sound = all(isinstance(h, str) and _HASH.fullmatch(h) for h in (salt, *hashes, *placed))
            if not sound or len(placed) > len(hashes):
                raise ModelFileError("The hashes of tracked images are damaged. Use another copy.")
        return cls(read)

    def _with(self, digest: str) -> Iterator[Group]:
        """Yield the groups that know an image: one at most, unless models were merged."""
        return (group for group in self.groups if _salted(digest, group.salt) in group.hashes)


def _salted(text: str, salt: str) -> str:
    return hashlib.blake2b(text.encode(), key=bytes.fromhex(salt), digest_size=16).hexdigest()


def _placed(digest: str, name: str, salt: str) -> str:
    # Digests are hexadecimal, so that no digest and name read like those of another image.
    return _salted(f"{digest}/{name}", salt)
