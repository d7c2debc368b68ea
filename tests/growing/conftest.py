"""Tests of what classifiers of images and of texts share run with each."""

import pytest

from acil.growing import snapshot
from support.kinds import KINDS


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.thing)
def kind(request):
    """Run each test with images and with texts, of which any call is tracked, also one of few."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshot, "LEAST_TRACKED", 1)
        yield request.param
