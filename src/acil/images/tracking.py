"""Which images a model has learnt, as salted hashes: so that none is learnt twice."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from acil.errors import InputError, ModelFileError

_HASH = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class Tracker:
    """Salted hashes of images; never changed, only replaced.

    Attributes
    ----------
    groups : tuple of (str, frozenset of str)
        Salt and hashes. Merging models that were made apart gives several groups.

    Notes
    -----
    The salt is random and stands in the file: it keeps hashes of two models from being compared, but
    whoever has the file and an image can tell whether the model has learnt that image.

    Examples
    --------
    >>> tracker = Tracker.new().with_added(["aa", "bb"])
    >>> tracker.known(["cc", "aa"])
    [1]
    """

    groups: tuple[tuple[str, frozenset[str]], ...] = ()

    @classmethod
    def new(cls) -> Tracker:
        """Return a tracker that has seen nothing, with a salt of its own."""
        return cls(((secrets.token_hex(16), frozenset()),))

    @property
    def active(self) -> bool:
        """Whether images are tracked."""
        return bool(self.groups)

    def __len__(self) -> int:
        return sum(len(hashes) for _, hashes in self.groups)

    def known(self, digests: Sequence[str]) -> list[int]:
        """Return which of these images have been learnt."""
        return [i for i, digest in enumerate(digests) if self._group_of(digest) is not None]

    def repeated(self, digests: Sequence[str]) -> list[int]:
        """Return which of these images have come before in the same list."""
        first: dict[str, int] = {}
        return [i for i, digest in enumerate(digests) if first.setdefault(digest, i) != i]

    def with_added(self, digests: Sequence[str]) -> Tracker:
        """Return a tracker that knows these images too, or raise if it knows one of them already."""
        known = self.known(digests) or self.repeated(digests)
        if known:
            raise InputError(
                f"{len(known)} of {len(digests)} images have been learnt already, or are given twice; "
                f"the first is number {known[0] + 1}. This model tracks its images: leave them out."
            )
        (salt, hashes), *others = self.groups
        return Tracker(((salt, hashes | {_salted(d, salt) for d in digests}), *others))

    def require_learnt(self, digests: Sequence[str]) -> None:
        """Raise unless all these images have been learnt, and none of them is given twice."""
        strange = len(digests) - len(self.known(digests))
        if strange or self.repeated(digests):
            raise InputError(
                f"{strange} of {len(digests)} images were never learnt, and "
                f"{len(self.repeated(digests))} are given twice. Give the files that were learnt."
            )

    def without(self, digests: Sequence[str]) -> Tracker:
        """Return a tracker that has never seen these images."""
        groups = (
            (salt, hashes - {_salted(digest, salt) for digest in digests})
            for salt, hashes in self.groups
        )
        return Tracker(tuple(groups))

    def merged(self, other: Tracker) -> Tracker:
        """Return a tracker that knows the images of both."""
        mine = dict(self.groups)
        for salt, hashes in other.groups:
            if mine.get(salt, frozenset()) & hashes:
                raise InputError(
                    f"{len(mine[salt] & hashes)} images have been learnt by both models, which have a "
                    "common past: merged, they would count twice. Forget them in one of the models."
                )
            mine[salt] = mine.get(salt, frozenset()) | hashes
        return Tracker(tuple(mine.items()))

    def to_list(self) -> list[dict[str, Any]]:
        """Return the groups as JSON has them."""
        return [{"salt": salt, "hashes": sorted(hashes)} for salt, hashes in self.groups]

    @classmethod
    def from_list(cls, groups: Any) -> Tracker:
        """Return the tracker of a model file, or say that the file is damaged."""
        try:
            read = tuple((group["salt"], frozenset(group["hashes"])) for group in groups)
        except (TypeError, KeyError) as error:
            raise ModelFileError(f"The hashes of tracked images are damaged ({error}).") from None
        for salt, hashes in read:
            if not all(isinstance(h, str) and _HASH.fullmatch(h) for h in (salt, *hashes)):
                raise ModelFileError("The hashes of tracked images are damaged. Use another copy.")
        return cls(read)

    def _group_of(self, digest: str) -> int | None:
        for number, (salt, hashes) in enumerate(self.groups):
            if _salted(digest, salt) in hashes:
                return number
        return None


def _salted(digest: str, salt: str) -> str:
    return hashlib.blake2b(digest.encode(), key=bytes.fromhex(salt), digest_size=16).hexdigest()
