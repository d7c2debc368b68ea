"""The benchmark of private releases runs on small features, and the page shows what its records hold."""

import json
import math
from pathlib import Path

import pytest
import torch

pytest.importorskip("dp_accounting")

from benchmarks import privacy as benchmark

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "results" / "privacy" / "frontier.jsonl"


def test_releases_and_rivals_are_measured_in_the_same_space():
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(1200) % 12
    x = torch.randn(12, 8, generator=generator)[y] * 2 + torch.randn(1200, 8, generator=generator)
    split = benchmark.Split(x, y)
    white = benchmark.Whitening.of(split, 6)
    split = split.mapped(white)
    assert split.x.shape == (1200, 6)
    torch.testing.assert_close(split.x.norm(dim=1), torch.ones(1200))
    parts = (*benchmark.halves(split), *benchmark.halves(split))
    found = [*benchmark.forms(*parts, 1), *benchmark.rivals(*parts, 1, False)]
    found += benchmark.softmaxes(*parts, 1)
    plain = {r["form"]: r["accuracy"] for r in found if r["epsilon"] == math.inf and r["phases"] == 1}
    assert min(plain.values()) > 80
    rows = [{"kind": "frontier", "features": "f", "space": "6", **record} for record in found]
    assert benchmark.table(rows).count("\n") == 7


def test_the_page_shows_the_recorded_frontier():
    records = [json.loads(line) for line in RECORDS.read_text(encoding="utf-8").splitlines()]
    page = (ROOT / "docs" / "privacy.md").read_text(encoding="utf-8")
    assert benchmark.table(records) in page
