"""Privacy of the head: what a model file reveals, and a release that reveals little."""

from acil.privacy.audit import SCOPE, Audit, Membership, audit
from acil.privacy.release import UNIT, combine, guarantee, privatize

__all__ = ["SCOPE", "UNIT", "Audit", "Membership", "audit", "combine", "guarantee", "privatize"]
