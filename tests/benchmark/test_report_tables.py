"""Tables say exactly what the records say, in three formats."""

import csv
import io

import pytest
from synthetic_records import run_records, write_run

from acil.benchmark.report.collect import collect
from acil.benchmark.report.labels import nbytes, plain, signed, three_digits
from acil.benchmark.report.render import Column, Table, escape_latex, to_csv, to_latex, to_markdown
from acil.benchmark.report.rows import Stat
from acil.benchmark.report.tables import (
    ablation_table,
    main_table,
    memory_table,
    overview_table,
    width_table,
)

REPLAY = {"samples": 6_144_000, "statistics": 0, "weights": 2_000_000}

MAIN = """\
**Comparison on cifar100 (order natural, recipe paper, 50 of 100 classes in phase 0, K = 5, 2 seeds)**

| Method |        Ā (%) | Published Ā | Difference |      A_K (%) |       F (%) | Published F | Samples kept | Statistics kept | Phase 0 (s) | Later phases (s) | Joint difference |       κ |
| ------ | -----------: | ----------: | ---------: | -----------: | ----------: | ----------: | -----------: | --------------: | ----------: | ---------------: | ---------------: | ------: |
| acil   | 66.20 ± 0.28 |       66.30 |      −0.10 | 57.00 ± 0.00 | 9.00 ± 0.00 |        9.00 |          0 B |          537 MB |        2.00 |             10.0 |          3.0e-13 | 1.2e+06 |
| icarl  | 57.60 ± 0.14 |       57.12 |      +0.48 | 57.00 ± 0.00 | 9.00 ± 0.00 |       57.12 |      6.14 MB |             0 B |        2.00 |             10.0 |                – |       – |

- Mean ± standard deviation (n − 1) over seeds.
- Published: Zhuang et al., ACIL, NeurIPS 2022, main table.
- acil: The paper's F differs between K, which it cannot for one and the same network.
- acil: Consistent with the natural class order and one seed; width 8,000.
- icarl: The paper's F at K = 5 (57.12) repeats its Ā: an error.
- icarl, Ā elsewhere (PODNet paper): 58.08 at K = 5.
- icarl, Ā elsewhere (collected from the literature): 58.03 at K = 5.
"""  # noqa: E501
SMALL = """\
**Comparison on cifar100 (order natural, recipe paper, 10 of 20 classes in phase 0, K = 5, 1 seed)**

| Method | Ā (%) | A_K (%) | F (%) | Samples kept | Statistics kept | Phase 0 (s) | Later phases (s) |
| ------ | ----: | ------: | ----: | -----------: | --------------: | ----------: | ---------------: |
| acil   | 66.00 |   57.00 |  9.00 |          0 B |          537 MB |        2.00 |             10.0 |
"""


def comparison_of(tmp_path, records, suite="main"):
    (comparison,) = collect([write_run(tmp_path / "run", records)]).suites[suite]
    return comparison


def test_main_table_is_known_to_the_letter(tmp_path):
    joint = [{"joint_difference": d, "condition": 1.25e6} for d in (1e-13, 3e-13)]
    records = [
        *run_records(seed=0, average=66.0, extra=joint[0]),
        *run_records(seed=1, average=66.4, extra=joint[1]),
        *run_records(seed=0, average=57.5, method="icarl", memory=REPLAY, settings={}),
        *run_records(seed=1, average=57.7, method="icarl", memory=REPLAY, settings={}),
    ]
    table = main_table(comparison_of(tmp_path, records))
    assert to_markdown(table) == MAIN


def test_one_seed_has_no_deviation_and_other_classes_no_published_value(tmp_path):
    table = main_table(comparison_of(tmp_path, run_records(base=10, classes=20)))
    assert to_markdown(table) == SMALL


def test_overview_has_a_column_for_each_k_and_gaps_where_runs_are_missing(tmp_path):
    records = [*run_records(), *run_records(phases=50), *run_records(method="mine", phases=50)]
    table = overview_table(comparison_of(tmp_path, records))
    assert to_markdown(table).splitlines()[2:] == [
        "| Method | Ā (%), K = 5 | to published | Ā (%), K = 50 | to published |",
        "| ------ | -----------: | -----------: | ------------: | -----------: |",
        "| acil   |        66.00 |        −0.30 |         66.00 |        −0.01 |",
        "| mine   |            – |            – |         66.00 |            – |",
    ]


def test_overview_of_one_k_would_repeat_the_table(tmp_path):
    assert overview_table(comparison_of(tmp_path, run_records())) is None


def test_different_numbers_of_seeds_are_said(tmp_path):
    records = [*run_records(seed=0), *run_records(seed=1), *run_records(method="mine")]
    table = main_table(comparison_of(tmp_path, records))
    assert "1 to 2 seeds" in table.title
    lines = to_markdown(table).splitlines()
    assert lines[2].startswith("| Method | Seeds |")
    assert [line.split("|")[2].strip() for line in lines[4:6]] == ["2", "1"]


def test_ablation_stands_beside_the_papers(tmp_path):
    variants = [(None, 0.1, 53.0), (8192, 0.1, 66.0), (8192, 0.01, 66.0), (8192, 0.0, 51.0)]
    records = [
        record
        for width, gamma, average in variants
        for record in run_records(
            suite="ablation", average=average, settings={"expansion_size": width, "gamma": gamma}
        )
    ]
    table = ablation_table(comparison_of(tmp_path, records, "ablation"))
    assert to_markdown(table).splitlines()[2:] == [
        "| Expansion |    γ | Ā (%) | Published Ā | Difference | A_K (%) | F (%) |",
        "| --------- | ---: | ----: | ----------: | ---------: | ------: | ----: |",
        "| none      |  0.1 | 53.00 |       52.99 |      +0.01 |   57.00 |  9.00 |",
        "| 8192      |    0 | 51.00 |       51.12 |      −0.12 |   57.00 |  9.00 |",
        "| 8192      | 0.01 | 66.00 |       66.25 |      −0.25 |   57.00 |  9.00 |",
        "| 8192      |  0.1 | 66.00 |       66.30 |      −0.30 |   57.00 |  9.00 |",
        "",
        "- Published: Zhuang et al., ACIL, NeurIPS 2022, ablation.",
        "- γ = 0: probably numerical damage rather than a lack of regularization.",
    ]


def test_ablation_shows_other_settings_that_differ(tmp_path):
    records = [
        record
        for dtype in ("float32", "float64")
        for record in run_records(suite="ablation", settings={"gamma": "auto", "dtype": dtype})
    ]
    lines = to_markdown(ablation_table(comparison_of(tmp_path, records, "ablation"))).splitlines()
    assert lines[2].startswith("| Expansion |    γ | dtype   |")
    assert lines[4].startswith("| yes       | auto | float32 |")


def test_width_table_goes_by_size(tmp_path):
    records = [
        record
        for width in (16384, 512, None)
        for record in run_records(suite="width", settings={"expansion_size": width})
    ]
    lines = to_markdown(width_table(comparison_of(tmp_path, records, "width"))).splitlines()
    assert [line.split("|")[1].strip() for line in lines[4:7]] == ["none", "512", "16384"]


def test_memory_table_goes_by_bytes(tmp_path):
    records = [*run_records(), *run_records(method="icarl", memory=REPLAY, suite="memory")]
    lines = to_markdown(memory_table(comparison_of(tmp_path, records, "memory"))).splitlines()
    assert [line.split("|")[1].strip() for line in lines[4:6]] == ["icarl", "acil"]
    assert [line.split("|")[4].strip() for line in lines[4:6]] == ["6.14 MB", "537 MB"]


def test_csv_has_unrounded_numbers_and_all_columns(tmp_path):
    records = [*run_records(seed=0, average=66.123456), *run_records(seed=1, average=66.0)]
    text = to_csv([main_table(comparison_of(tmp_path, records))])
    (row,) = csv.DictReader(io.StringIO(text))
    assert float(row["average_accuracy"]) == pytest.approx(66.061728, abs=1e-12)
    assert float(row["average_accuracy_std"]) == pytest.approx(0.0872966, abs=1e-7)
    assert (row["dataset"], row["order"], row["recipe"], row["phases"]) == (
        *("cifar100", "natural", "paper"),
        "5",
    )
    assert (row["statistics_bytes"], row["seeds"], row["condition"]) == ("536870912", "2", "")
    assert row["peak_bytes"] == "1000000000"


def test_csv_of_tables_with_different_columns_has_all_of_them():
    tables = [
        Table("a", "A", [Column("x", "X")], [["1"]], about={"dataset": "d"}),
        Table(
            "b",
            "B",
            [Column("x", "X"), Column("y", "Y")],
            [["2", Stat(1.5, None, 1)]],
            about={"dataset": "e"},
        ),
    ]
    assert to_csv(tables) == "dataset,x,y,y_std\nd,1,,\ne,2,1.5,\n"


def test_latex_is_known_to_the_letter():
    table = Table(
        "main",
        "50 % of a_b & c",
        [Column("k", "K", "count", "$K$"), Column("m", "Method"), Column("a", "Ā (%)", "percent")],
        [[5, "a_b {γ = 1}", Stat(66.0, 0.5, 2)], [10, "c", None]],
        ["Mean ± deviation."],
        group="k",
    )
    assert to_latex(table) == "\n".join(
        [
            r"% needs \usepackage{booktabs}",
            r"\begin{table}",
            r"  \centering",
            r"  \caption{50 \% of a\_b \& c}",
            r"  \label{tab:main}",
            r"  \begin{tabular}{rlr}",
            r"    \toprule",
            r"    $K$ & Method & $\bar{A}$ (\%) \\",
            r"    \midrule",
            r"    5 & a\_b \{$\gamma$ = 1\} & 66.00 $\pm$ 0.50 \\",
            r"    \midrule",
            r"    10 & c & -- \\",
            r"    \bottomrule",
            r"  \end{tabular}",
            r"  \par\footnotesize Mean $\pm$ deviation.",
            r"\end{table}",
            "",
        ]
    )


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("a_b", r"a\_b"),
        ("100 % & more $ #1", r"100 \% \& more \$ \#1"),
        ("{x}^2~y", r"\{x\}\textasciicircum{}2\textasciitilde{}y"),
        ("\\input{x}", r"\textbackslash{}input\{x\}"),
        ("a<b>c|d`", r"a\textless{}b\textgreater{}c\textbar{}d\textasciigrave{}"),
        ("−1 ± 2 ≈ γ", r"$-$1 $\pm$ 2 $\approx$ $\gamma$"),
        ("two\nlines", "two lines"),
    ],
)
def test_latex_prints_every_character(text, escaped):
    assert escape_latex(text) == escaped


def test_markdown_cells_cannot_break_the_table():
    table = Table("t", "T", [Column("m", "Method")], [["a|b\n*c* <script>"]])
    assert to_markdown(table).splitlines()[4] == r"| a\|b \*c\* &lt;script> |"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (999, "999 B"), (999_499, "999 kB"), (999_500, "1.00 MB"), (536_870_912, "537 MB")],
)
def test_bytes_have_three_digits(value, text):
    assert nbytes(value) == text


def test_numbers_never_have_an_exponent_or_a_signed_zero():
    assert [three_digits(v) for v in (0, 0.05, 9.996, 99.96, 1e6)] == [
        *("0.00", "0.050", "10.0", "100", "1000000"),
    ]
    assert [signed(v) for v in (-0.004, 0.004, -1, 1)] == ["0.00", "0.00", "−1.00", "+1.00"]
    assert [plain(v) for v in (True, None, 1e-5, [], {"b": 1, "a": 2})] == [
        *("yes", "none", "1e-05", "none", "a: 2, b: 1"),
    ]
