"""The benchmark of private releases runs on small features, and the page shows what its records hold."""

import json
import math
from pathlib import Path

import pytest
import torch

pytest.importorskip("dp_accounting")

from acil.privacy import softmax
from benchmarks import privacy as benchmark

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "results" / "privacy" / "frontier.jsonl"
CHOICE = ROOT / "results" / "privacy" / "choice.jsonl"


def test_releases_and_rivals_are_measured_in_the_same_space():
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(1200) % 12
    x = torch.randn(12, 8, generator=generator)[y] * 2 + torch.randn(1200, 8, generator=generator)
    split = benchmark.Split(x, y)
    white = benchmark.Whitening.of(split, 6)
    split = split.mapped(white)
    assert split.x.shape == (1200, 6)
    torch.testing.assert_close(split.x.norm(dim=1), torch.ones(1200))
    first = torch.arange(1200) < 900
    parts = [split.where(first), split.where(~first)] * 2
    found = [*benchmark.forms(*parts, 1), *benchmark.rivals(*parts, 1, False)]
    found += benchmark.softmaxes(*parts, 1)
    plain = {r["form"]: r["accuracy"] for r in found if r["epsilon"] == math.inf and r["phases"] == 1}
    assert min(plain.values()) > 80
    rows = [{"kind": "frontier", "features": "f", "space": "6", **record} for record in found]
    assert benchmark.table(rows).count("\n") == 6


@pytest.mark.parametrize(
    ("gains", "chosen"),
    [
        ({}, {"_STEPS": 8, "_RIDGE": 0.2}),  # nothing matters: few steps, and where the search starts
        ({("_STEPS", 16): 0.1}, {"_STEPS": 8, "_RIDGE": 0.2}),  # less than the error of a difference
        ({("_STEPS", 16): 1.0}, {"_STEPS": 16, "_RIDGE": 0.2}),
        ({("_RIDGE", 0.1): 1.0, ("_RIDGE", 0.05): 0.9}, {"_STEPS": 8, "_RIDGE": 0.1}),
        ({("_STEPS", 8): -1.0, ("_STEPS", 32): 0.1}, {"_STEPS": 16, "_RIDGE": 0.2}),
    ],
)
def test_constants_are_chosen_by_the_rule(monkeypatch, gains, chosen):
    def judged(trials, constants, epsilons, more=1):
        return {"mean": 50 + sum(gains.get(item, 0) for item in constants.items()), "error": 0.1}

    monkeypatch.setattr(benchmark, "judged", judged)
    monkeypatch.setattr(benchmark, "TRIED", {"_RIDGE": (0.2, 0.1, 0.05), "_STEPS": (8, 16, 32)})
    found = list(benchmark.choice(Path(), []))
    assert [record for record in found if record["kind"] == "chosen"] == [{"kind": "chosen", **chosen}]


def test_the_choice_judges_the_constants_it_is_given(monkeypatch):
    seen = []
    monkeypatch.setattr(benchmark, "private_weights", lambda *given: seen.append(softmax._STEPS))
    monkeypatch.setattr(benchmark, "accuracy", lambda judge, W: 40.0 + 10.0 * (len(seen) % 2))
    found = benchmark.judged(
        {"a": [(None, None, None)], "b": [(None, None, None)]}, {"_STEPS": 3}, (1.0,)
    )
    assert seen == [3] * 4
    # Two draws of each, which differ by 10: a variance of 50, and of the mean of four 12.5
    assert found == {
        "by_features": {"a": 45.0, "b": 45.0},
        "mean": 45.0,
        "error": pytest.approx(12.5**0.5),
    }


def test_the_constants_are_those_chosen():
    records = [json.loads(line) for line in CHOICE.read_text(encoding="utf-8").splitlines()]
    (chosen,) = (record for record in records if record.pop("kind") == "chosen")
    assert chosen == {name: getattr(softmax, name) for name in benchmark.TRIED}


def test_the_page_shows_the_recorded_frontier():
    records = [json.loads(line) for line in RECORDS.read_text(encoding="utf-8").splitlines()]
    page = (ROOT / "docs" / "privacy.md").read_text(encoding="utf-8")
    assert benchmark.table(records) in page
