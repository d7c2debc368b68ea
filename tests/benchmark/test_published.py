"""Published numbers are those of the paper, under registry names, with their caveats."""

import pytest
from synthetic_records import run_records, write_run

from acil.benchmark.published import PAPER_NOTES, ablation, elsewhere, published
from acil.benchmark.report.collect import collect
from acil.benchmark.report.tables import main_table


@pytest.mark.parametrize(
    ("dataset", "averages", "forgetting"),
    [
        ("cifar100", [66.30, 66.07, 65.95, 66.01], [9.00, 9.72, 9.28, 9.32]),
        ("imagenet-subset", [74.81, 74.76, 74.59, 74.13], [3.91, 3.40, 3.20, 3.43]),
        ("imagenet-full", [65.34, 64.84, 64.63, 64.35], [2.75, 3.45, 3.31, 3.40]),
    ],
)
def test_rows_of_acil_are_the_papers(dataset, averages, forgetting):
    rows = [published(dataset, "acil", k) for k in (5, 10, 25, 50)]
    assert [row.average_accuracy for row in rows] == averages
    assert [row.forgetting for row in rows] == forgetting
    assert all("NeurIPS 2022" in row.source for row in rows)


@pytest.mark.parametrize(
    ("method", "k", "average", "forgetting"),
    [
        ("lwf-exemplars", 25, 45.51, 41.66),
        ("bic", 10, 54.20, 32.50),
        ("icarl", 10, 52.66, 34.10),
        ("lucir", 5, 63.17, 18.70),
        ("podnet", 50, 57.98, None),
        ("lucir+mnemonics", 25, 63.70, 9.96),
        ("podnet+aanets", 5, 66.31, None),
        ("podnet+aanets+rmm", 5, 68.36, None),
    ],
)
def test_rows_of_other_methods_are_the_papers(method, k, average, forgetting):
    row = published("cifar100", method, k)
    assert (row.average_accuracy, row.forgetting) == (average, forgetting)


@pytest.mark.parametrize(
    ("dataset", "method", "k"),
    [
        ("cifar100", "acil", 7),
        ("cifar100", "bic", 50),
        ("cifar100", "lwf", 5),
        ("cifar100", "my.module:Method", 5),
        ("digits", "acil", 5),
        ("imagenet-full", "podnet+aanets+rmm", 5),
    ],
)
def test_what_was_not_published_is_none(dataset, method, k):
    assert published(dataset, method, k) is None


def test_known_errors_are_noted_where_they_are():
    assert any("repeats its Ā" in note for note in published("cifar100", "icarl", 5).notes)
    assert not published("cifar100", "icarl", 10).notes
    assert any("exemplars" in note for note in published("cifar100", "lwf-exemplars", 5).notes)
    assert any("repeats" in note for note in published("imagenet-full", "lwf-exemplars", 5).notes)
    assert any("subsets" in note for note in published("imagenet-subset", "podnet", 5).notes)
    assert any("Strict" in note for note in published("cifar100", "podnet+aanets+rmm", 5).notes)
    assert any("sign" in note for note in PAPER_NOTES)


def test_elsewhere_has_every_source_of_a_method():
    found = elsewhere("cifar100", "icarl", 5)
    assert [row.average_accuracy for row in found] == [58.03, 58.08]
    assert elsewhere("cifar100", "finetune", 5)[0].approximate
    assert elsewhere("cifar100", "acil", 25)[0].average_accuracy == 71.05
    assert elsewhere("cifar100", "acil", 5) == ()
    assert elsewhere("imagenet-full", "icarl", 5) == ()


@pytest.mark.parametrize(
    ("expansion", "gamma", "average"),
    [
        (False, 0.1, 52.99),
        (True, 1e-1, 66.30),
        (True, 1e-2, 66.25),
        (True, 1e-3, 66.23),
        (True, 0, 51.12),
    ],
)
def test_ablation_is_the_papers(expansion, gamma, average):
    row = ablation("cifar100", expansion, gamma)
    assert row.average_accuracy == average
    assert bool(row.notes) == (gamma == 0)


def test_ablation_that_was_not_published_is_none():
    assert ablation("cifar100", True, 1.0) is None
    assert ablation("cifar100", False, 0.01) is None
    assert ablation("cifar100", True, 0.1, phases=10) is None
    assert ablation("digits", True, 0.1) is None


@pytest.mark.parametrize("name", ["imagenet100-lucir", "imagenet100-podnet:ilsvrc"])
def test_both_subsets_of_imagenet_stand_beside_the_papers_row(name, tmp_path):
    records = run_records(dataset=name, recipe="imagenet")
    (comparison,) = collect([write_run(tmp_path, records)]).suites["main"]
    (row,) = main_table(comparison).rows
    assert 74.81 in row
    assert any("mix the two ImageNet-100 subsets" in note for note in main_table(comparison).notes)


def test_a_recipe_that_follows_another_source_is_compared_with_that():
    found = published("cifar100", "acil", 25, "authors")
    assert (found.average_accuracy, found.source) == (71.05, "authors' code")
    assert published("cifar100", "acil", 5, "authors") is None
    assert published("cifar100", "icarl", 25, "authors") is None
    assert published("cifar100", "acil", 25, "strong") == published("cifar100", "acil", 25)
