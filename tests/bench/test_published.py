"""Published numbers are those of the paper, under registry names, with their caveats."""

import pytest

from acil.bench.published import PAPER_NOTES, ablation, elsewhere, published
from acil.bench.report.render import to_markdown
from acil.bench.report.tables import overview_table, suite_table
from support.synthetic_records import compared, run_records


@pytest.mark.parametrize(
    ("dataset", "method", "averages", "forgetting"),
    [
        ("cifar100", "acil", [66.30, 66.07, 65.95, 66.01], [9.00, 9.72, 9.28, 9.32]),
        ("imagenet-subset", "acil", [74.81, 74.76, 74.59, 74.13], [3.91, 3.40, 3.20, 3.43]),
        ("cifar100", "lwf-exemplars", [49.59, 46.98, 45.51], [43.36, 43.58, 41.66]),
        ("cifar100", "bic", [59.36, 54.20, 50.00], [31.42, 32.50, 34.60]),
        ("cifar100", "icarl", [57.12, 52.66, 48.22], [57.12, 34.10, 36.48]),
        ("cifar100", "lucir", [63.17, 60.14, 57.54], [18.70, 21.34, 26.46]),
        ("cifar100", "podnet", [64.83, 63.19, 60.72, 57.98], [None] * 4),
        ("cifar100", "lucir+mnemonics", [64.95, 63.25, 63.70], [11.64, 10.90, 9.96]),
        ("cifar100", "podnet+aanets", [66.31, 64.31, 62.31], [None] * 3),
        ("cifar100", "podnet+aanets+rmm", [68.36, 66.67, 64.12], [None] * 3),
    ],
)
def test_rows_are_the_papers(dataset, method, averages, forgetting):
    rows = [published(dataset, method, k) for k in (5, 10, 25, 50)[: len(averages)]]
    assert [row.average_accuracy for row in rows] == averages
    assert [row.forgetting for row in rows] == forgetting
    assert all("NeurIPS 2022" in row.source for row in rows)


@pytest.mark.parametrize(
    ("dataset", "method", "k"),
    [
        ("cifar100", "acil", 7),
        ("cifar100", "bic", 50),
        ("cifar100", "lwf", 5),
        ("cifar100", "my.module:Method", 5),
        ("digits", "acil", 5),
    ],
)
def test_what_was_not_published_is_none(dataset, method, k):
    assert published(dataset, method, k) is None


@pytest.mark.parametrize(
    ("dataset", "method", "words"),
    [
        ("cifar100", "icarl", "repeats its Ā"),
        ("cifar100", "lwf-exemplars", "exemplars"),
        ("imagenet-subset", "podnet", "subsets"),
        ("cifar100", "podnet+aanets+rmm", "Strict"),
    ],
)
def test_known_errors_are_noted_where_they_are(dataset, method, words):
    assert any(words in note for note in published(dataset, method, 5).notes)
    assert not published("cifar100", "icarl", 10).notes
    assert any("sign" in note for note in PAPER_NOTES)


def test_elsewhere_has_every_source_of_a_method():
    found = elsewhere("cifar100", "icarl", 5)
    assert [row.average_accuracy for row in found] == [58.03, 58.08]
    assert elsewhere("cifar100", "finetune", 5)[0].approximate
    assert elsewhere("cifar100", "acil", 25)[0].average_accuracy == 71.05
    assert elsewhere("cifar100", "acil", 5) == ()
    assert elsewhere("imagenet-subset", "icarl", 5) == ()


def test_ablation_is_the_papers_and_what_was_not_published_is_none():
    at = [(False, 0.1), (True, 1e-1), (True, 1e-2), (True, 1e-3), (True, 0)]
    rows = [ablation("cifar100", expansion, gamma) for expansion, gamma in at]
    assert [row.average_accuracy for row in rows] == [52.99, 66.30, 66.25, 66.23, 51.12]
    assert [bool(row.notes) for row in rows] == [False, False, False, False, True]
    assert ablation("cifar100", True, 1.0) is None
    assert ablation("cifar100", False, 0.01) is None
    assert ablation("cifar100", True, 0.1, phases=10) is None
    assert ablation("digits", True, 0.1) is None


@pytest.mark.parametrize(
    "name", ["imagenet100-lucir", "imagenet100-podnet:ilsvrc", "imagenet100:ilsvrc"]
)
def test_both_subsets_of_imagenet_stand_beside_the_papers_row(name, tmp_path):
    records = run_records(dataset=name, recipe="imagenet")
    comparison = compared(tmp_path, records)
    (row,) = suite_table("main", comparison).rows
    assert 74.81 in row
    assert any(
        "mix the two ImageNet-100 subsets" in note for note in suite_table("main", comparison).notes
    )


def test_the_third_panel_stands_beside_all_of_imagenet(tmp_path):
    records = run_records(dataset="imagenet:ilsvrc", recipe="imagenet", settings={"base": 500})
    for record in records:
        if record["kind"] == "phase":
            record["classes_seen"] *= 10
    (row,) = suite_table("main", compared(tmp_path, records)).rows
    assert 65.34 in row


def test_a_recipe_that_follows_another_source_is_compared_with_that():
    found = published("cifar100", "acil", 25, "authors")
    assert (found.average_accuracy, found.source) == (71.05, "authors' code")
    assert published("cifar100", "acil", 5, "authors") is None
    assert published("cifar100", "icarl", 25, "authors") is None
    assert published("imagenet-subset", "acil", 25, "imagenet").average_accuracy == 74.59


@pytest.mark.parametrize(
    "changes",
    [{"recipe": "strong"}, {"recipe": "quick"}, {"settings": {"recipe.training.epochs": 6}}],
    ids=str,
)
@pytest.mark.parametrize("suite", ["main", "ablation"])
def test_rows_of_another_recipe_have_no_difference_to_the_papers(tmp_path, suite, changes):
    usual = {"expansion_size": 8000, "gamma": 0.1}
    own = {**changes, "settings": {**usual, **changes.get("settings", {})}}
    for folder, settings, shown in (("like", {"settings": usual}, True), ("unlike", own, False)):
        records = [r for k in (5, 10) for r in run_records(suite=suite, phases=k, **settings)]
        comparison = compared(tmp_path / folder, records, suite)
        text = to_markdown(suite_table(suite, comparison))
        if suite == "main":
            text += to_markdown(overview_table(comparison))
        assert [word in text for word in ("66.30", "−0.30", "Published", "to published")] == (
            [shown, shown, shown, shown and suite == "main"]
        )
