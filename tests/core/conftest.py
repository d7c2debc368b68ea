"""What tests of the solver and of the choice of γ count."""

import pytest

from acil.core.cholesky import Factor


@pytest.fixture
def factors(monkeypatch):
    """Collect γ of each factor that is made."""
    made, usual = [], Factor.__init__

    def counted(self, sums, gamma, *rest):
        made.append(gamma)
        usual(self, sums, gamma, *rest)

    monkeypatch.setattr(Factor, "__init__", counted)
    return made
