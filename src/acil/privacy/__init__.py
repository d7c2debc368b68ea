"""Privacy of the head: what a model file reveals, and a release that reveals little."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from acil.privacy.attack import Audit, Membership, audit
    from acil.privacy.release import combine, guarantee, privatize
    from acil.privacy.softmax import private_softmax

__all__ = [
    "SCOPE",
    "UNIT",
    "Audit",
    "Membership",
    "audit",
    "combine",
    "guarantee",
    "private_softmax",
    "privatize",
]

#: Said wherever privacy is.
SCOPE = (
    "This is about the head only. A backbone keeps what it was trained on: protection holds for samples "
    "that the backbone never saw."
)
#: What two sets of samples may differ in, said beside every ε.
UNIT = "one sample added or removed"

# They need torch, which takes seconds to import; the words do not.
_HOMES = {
    "combine": "release",
    "guarantee": "release",
    "privatize": "release",
    "private_softmax": "softmax",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'acil.privacy' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"acil.privacy.{_HOMES.get(name, 'attack')}"), name)
    globals()[name] = value
    return value
