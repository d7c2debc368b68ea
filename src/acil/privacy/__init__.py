"""Privacy of the head: what a model file reveals, and a release that reveals little."""

from acil.privacy.audit import SCOPE, Audit, Membership, audit

__all__ = ["SCOPE", "Audit", "Membership", "audit"]
