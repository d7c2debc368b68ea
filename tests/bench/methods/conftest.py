"""What trainings of increments are given, for tests of methods that train networks."""

import pytest

from acil.bench.methods.incremental import IncrementalNetwork


@pytest.fixture
def fits(monkeypatch):
    """Collect (network, labels, objective) of increments; the network stays as it starts."""
    calls = []

    def fit(self, network, data, phase, objective=None):
        calls.append((network, data[1], objective))
        return network

    monkeypatch.setattr(IncrementalNetwork, "fit", fit)
    return calls
