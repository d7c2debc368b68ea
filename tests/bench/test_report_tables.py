"""Tables say what the records say, failed runs included, in Markdown, CSV and LaTeX."""

import csv
import io

import pytest
import torch
from scipy.stats import ttest_rel

from acil.bench.report import write_report
from acil.bench.report.collect import collect
from acil.bench.report.page import commands
from acil.bench.report.paired import paired_table
from acil.bench.report.render import (
    Column,
    Table,
    escape_latex,
    nbytes,
    signed,
    three_digits,
    to_csv,
    to_latex,
    to_markdown,
)
from acil.bench.report.rows import Run, Stat, plain
from acil.bench.report.tables import failure_notes, overview_table, reason, suite_table
from acil.core.cholesky import cholesky_
from acil.errors import SingularMatrixError
from support.synthetic_records import compared, identity, phase_record, run_records, write_run

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
- acil: Mean of three runs; the paper does not name its class order. Width 8,000.
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


def test_main_table_is_known_to_the_letter(tmp_path):
    joint = [{"joint_difference": d, "condition": 1.25e6} for d in (1e-13, 3e-13)]
    records = [
        *run_records(seed=0, average=66.0, extra=joint[0]),
        *run_records(seed=1, average=66.4, extra=joint[1]),
        *run_records(seed=0, average=57.5, method="icarl", memory=REPLAY, settings={}),
        *run_records(seed=1, average=57.7, method="icarl", memory=REPLAY, settings={}),
    ]
    table = suite_table("main", compared(tmp_path, records))
    assert to_markdown(table) == MAIN


def test_one_seed_has_no_deviation_and_other_classes_no_published_value(tmp_path):
    table = suite_table("main", compared(tmp_path, run_records(base=10, classes=20)))
    assert to_markdown(table) == SMALL


def test_overview_has_a_column_for_each_k_and_gaps_where_runs_are_missing(tmp_path):
    records = [*run_records(), *run_records(phases=50), *run_records(method="mine", phases=50)]
    table = overview_table(compared(tmp_path, records))
    assert to_markdown(table).splitlines()[2:] == [
        "| Method | Ā (%), K = 5 | to published | Ā (%), K = 50 | to published |",
        "| ------ | -----------: | -----------: | ------------: | -----------: |",
        "| acil   |        66.00 |        −0.30 |         66.00 |        −0.01 |",
        "| mine   |            – |            – |         66.00 |            – |",
    ]
    # With a single K it would repeat the table.
    assert overview_table(compared(tmp_path / "one", run_records())) is None


def test_different_numbers_of_seeds_are_said(tmp_path):
    records = [*run_records(seed=0), *run_records(seed=1), *run_records(method="mine")]
    table = suite_table("main", compared(tmp_path, records))
    assert "1 to 2 seeds" in table.title
    lines = to_markdown(table).splitlines()
    assert lines[2].startswith("| Method | Seeds |")
    assert [line.split("|")[2].strip() for line in lines[4:6]] == ["2", "1"]


def test_ablation_shows_other_settings_that_differ(tmp_path):
    records = [
        record
        for dtype in ("float32", "float64")
        for record in run_records(suite="ablation", settings={"gamma": "auto", "dtype": dtype})
    ]
    lines = to_markdown(suite_table("ablation", compared(tmp_path, records, "ablation"))).splitlines()
    assert lines[2].startswith("| Expansion |    γ | dtype   |")
    assert lines[4].startswith("| yes       | auto | float32 |")


@pytest.mark.parametrize("suite", ["ablation", "width"])
def test_method_without_an_expansion_shows_no_size(tmp_path, suite):
    given = {"expansion_size": 8192, "dtype": "float64"}
    records = [*run_records(suite=suite, settings=given), *run_records(suite=suite, method="lda")]
    table = suite_table(suite, compared(tmp_path, records, suite))
    keys = [column.key for column in table.columns]
    assert [row[keys.index("expansion")] for row in table.rows] == ["8192", None]
    assert "dtype" not in keys


def test_width_table_goes_by_size(tmp_path):
    records = [
        record
        for width in (16384, 512, None)
        for record in run_records(suite="width", settings={"expansion_size": width})
    ]
    lines = to_markdown(suite_table("width", compared(tmp_path, records, "width"))).splitlines()
    assert [line.split("|")[1].strip() for line in lines[4:7]] == ["none", "512", "16384"]


def test_csv_has_unrounded_numbers_and_all_columns(tmp_path):
    records = [*run_records(seed=0, average=66.123456), *run_records(seed=1, average=66.0)]
    text = to_csv([suite_table("main", compared(tmp_path, records))])
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
            [["2", Stat(1.5, None)]],
            about={"dataset": "e"},
        ),
    ]
    assert to_csv(tables) == "dataset,x,y,y_std\nd,1,,\ne,2,1.5,\n"


def test_latex_is_known_to_the_letter():
    table = Table(
        "main",
        "50 % of a_b & c",
        [Column("phases", "K", "count", "$K$"), Column("m", "Method"), Column("a", "Ā (%)", "percent")],
        [[5, "a_b {γ = 1}", Stat(66.0, 0.5)], [10, "c", None]],
        ["Mean ± deviation."],
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


def test_latex_prints_every_character():
    text = "a_b 100 % & more $ #1 {x}^2~y \\input{x} a<b>c|d` −1 ± 2 ≈ γ two\nlines"
    assert escape_latex(text) == (
        r"a\_b 100 \% \& more \$ \#1 \{x\}\textasciicircum{}2\textasciitilde{}y "
        r"\textbackslash{}input\{x\} a\textless{}b\textgreater{}c\textbar{}d\textasciigrave{} "
        r"$-$1 $\pm$ 2 $\approx$ $\gamma$ two lines"
    )


def test_markdown_cells_cannot_break_the_table():
    table = Table("t", "T", [Column("m", "Method")], [["a|b\n*c* <script>"]])
    assert to_markdown(table).splitlines()[4] == r"| a\|b \*c\* &lt;script> |"


@pytest.mark.parametrize(
    ("written", "numbers"),
    [
        (nbytes, {0: "0 B", 999: "999 B", 999_499: "999 kB", 999_500: "1.00 MB", 536_870_912: "537 MB"}),
        (three_digits, {0: "0.00", 0.05: "0.050", 9.996: "10.0", 99.96: "100", 1e6: "1000000"}),
        (signed, {-0.004: "0.00", 0.004: "0.00", -1: "−1.00", 1: "+1.00"}),
        (plain, {True: "yes", None: "none", 1e-5: "1e-05", (): "none", (1, 2): "1+2"}),
    ],
)
def test_numbers_never_have_an_exponent_or_a_signed_zero(written, numbers):
    assert {number: written(number) for number in numbers} == numbers


MESSAGE = (
    "gram + γI is not positive definite to working precision (γ = 0, {}): pivot {} of 8 is not positive."
)


def settings(gamma, seed=0, dtype="float64", width=8000):
    return {
        "expansion_size": width,
        "gamma": gamma,
        "dtype": dtype,
        "base": 50,
        "classes": 100,
        "backbone": f"natural-{seed}.safetensors@{seed}",
    }


def failure_record(error=MESSAGE, **changes):
    return {"kind": "failure", **identity(**changes), "error": error}


def ablation_records():
    records = []
    for seed in (0, 1, 2):
        for width, gamma, average in ((None, 0.1, 53.0), (8000, 0.1, 66.0)):
            chosen = settings(gamma, seed, width=width)
            records += run_records(suite="ablation", seed=seed, average=average, settings=chosen)
        message = MESSAGE.format("float64", seed + 1)
        records.append(
            failure_record(message, suite="ablation", seed=seed, settings=settings(0.0, seed))
        )
    for gamma in (0.1, 0.0):
        chosen = settings(gamma, dtype="float32")
        records.append(failure_record(MESSAGE.format("float32", 7), suite="ablation", settings=chosen))
    return records


@pytest.fixture
def ablation(tmp_path):
    return compared(tmp_path, ablation_records(), "ablation")


def test_ablation_has_rows_for_what_failed_beside_the_papers(ablation):
    lines = to_markdown(suite_table("ablation", ablation)).splitlines()
    assert "K = 5, 1 to 3 seeds)" in lines[0]
    assert lines[2:] == [
        "| Expansion |   γ | dtype   | Seeds | Failed |        Ā (%) | Published Ā | Difference |      A_K (%) |       F (%) |",  # noqa: E501
        "| --------- | --: | ------- | ----: | -----: | -----------: | ----------: | ---------: | -----------: | ----------: |",  # noqa: E501
        "| 8000      |   0 | float32 |     1 |      1 | not solvable |       51.12 |          – |            – |           – |",  # noqa: E501
        "| 8000      | 0.1 | float32 |     1 |      1 | not solvable |       66.30 |          – |            – |           – |",  # noqa: E501
        "| none      | 0.1 | float64 |     3 |      – | 53.00 ± 0.00 |       52.99 |      +0.01 | 57.00 ± 0.00 | 9.00 ± 0.00 |",  # noqa: E501
        "| 8000      |   0 | float64 |     3 |      3 | not solvable |       51.12 |          – |            – |           – |",  # noqa: E501
        "| 8000      | 0.1 | float64 |     3 |      – | 66.00 ± 0.00 |       66.30 |      −0.30 | 57.00 ± 0.00 | 9.00 ± 0.00 |",  # noqa: E501
        "",
        "- Mean ± standard deviation (n − 1) over seeds.",
        "- not solvable (acil (dtype = float32, d = 8000, γ = 0), K = 5, seed 0; 4 more runs likewise): "
        + MESSAGE.format("float32", 7),
        "- Published: Zhuang et al., ACIL, NeurIPS 2022, ablation.",
        "- γ = 0: probably numerical damage rather than a lack of regularization.",
    ]


def test_formats_for_machines_and_papers_have_the_row(ablation):
    table = suite_table("ablation", ablation)
    rows = list(csv.DictReader(io.StringIO(to_csv([table]))))
    assert [row["average_accuracy"] for row in rows] == ["", "", "53.0", "", "66.0"]
    assert [row["failed"] for row in rows] == ["1", "1", "", "3", ""]
    assert "8000 & 0 & float64 & 3 & 3 & not solvable & 51.12 & -- " in to_latex(table)


def test_commands_name_all_seeds_that_were_tried(ablation):
    float32, float64 = commands(ablation, "ablation")
    assert float32.endswith(
        "--seeds 0 --suite ablation --backbone natural-0.safetensors --dtype float32"
    )
    assert float64.endswith("--seeds 0,1,2 --suite ablation --backbone FILE")


def test_page_calls_only_interrupted_runs_unfinished(tmp_path):
    folder = write_run(tmp_path / "run", ablation_records())
    report = write_report(folder)
    page = (folder / "report" / "report.md").read_text(encoding="utf-8")
    assert "Unfinished" not in page
    assert page.count("not positive definite") == 1
    write_run(folder, [phase_record(suite="ablation", seed=9)])
    report = write_report(folder, plots=False)
    assert report.markdown.count("its last phase is 0 of 5") == 1
    assert report.markdown.count("not positive definite") == 1


def test_every_table_and_plot_stands_a_method_that_failed(tmp_path):
    records = [*run_records(), *run_records(phases=10)]
    for k in (5, 10):
        records.append(phase_record(method="lucir", phases=k, settings={"base": 50, "classes": 100}))
        error = "Training diverged: the loss is nan in epoch 3 of 160."
        chosen = {"base": 50, "classes": 100}
        records.append(failure_record(error, method="lucir", phases=k, settings=chosen))
    folder = write_run(tmp_path / "run", records)
    found = collect([folder]).suites
    (main,), (memory,) = found["main"], found["memory"]
    for table, column in (
        (overview_table(main), 1),
        (suite_table("main", main), 4),
        (suite_table("memory", memory), 8),
    ):
        (row,) = {row[column] for row in table.rows if "lucir" in row}
        assert row == "diverged"
    assert not any("diverged:" in note for note in overview_table(main).notes)
    assert sum("Training diverged" in note for note in suite_table("main", main).notes) == 1
    report = write_report(folder)
    # Plots show what there are numbers of: the failed run is in no legend.
    assert len(report.plots) == 3
    assert [row.method for row in main.finished.rows] == ["acil"]


@pytest.mark.parametrize(
    ("errors", "notes"),
    [
        (["It broke."], ["failed (acil, K = 5, seed 2): It broke."]),
        (
            ["No room for 5 samples.", "No room for 6 samples.", "No data."],
            [
                "failed (acil, K = 5, seed 2; 1 more run likewise): No room for 5 samples.",
                "failed (acil, K = 5, seed 4): No data.",
            ],
        ),
    ],
    ids=["one", "alike but for numbers"],
)
def test_seeds_that_failed_are_told_from_those_averaged(tmp_path, errors, notes):
    chosen = {"expansion_size": 8192, "gamma": 0.1, "base": 50, "classes": 100}
    records = [
        *run_records(seed=0, average=60.0, settings=chosen),
        *run_records(seed=1, average=62.0, settings=chosen),
        *(failure_record(error, seed=seed, settings=chosen) for seed, error in enumerate(errors, 2)),
    ]
    comparison = compared(tmp_path, records)
    (row,) = suite_table("main", comparison).rows
    assert (row[2:4], row[4].mean) == ([2 + len(errors), len(errors)], 61.0)
    assert failure_notes(comparison) == [
        "Failed: seeds without a result; means are over the others.",
        *notes,
    ]


def test_run_that_failed_and_was_finished_later_is_finished(tmp_path):
    failed = write_run(tmp_path / "a", [failure_record()])
    done = write_run(tmp_path / "b", run_records())
    both = write_run(tmp_path / "c", [failure_record(), *run_records()])
    for directories in ([failed, done], [done, failed], [both]):
        found = collect(directories)
        ((_, _, cell),) = found.suites["main"][0].cells()
        assert (len(cell.runs), len(cell.failed), found.unfinished) == (1, 0, ())


def test_run_taken_up_again_after_its_failure_is_unfinished_and_one_that_failed_at_once_is_not(tmp_path):
    found = collect([write_run(tmp_path / "again", [failure_record(), phase_record()])])
    assert len(found.unfinished) == 1
    assert not found.suites["main"]
    report = write_report(write_run(tmp_path / "run", [failure_record("It broke.")]))
    assert "No run has finished yet" not in report.markdown
    assert "failed (acil, K = 5, seed 0): It broke." in report.markdown
    assert not report.plots


def test_message_of_the_solver_is_known():
    with pytest.raises(SingularMatrixError) as error:
        cholesky_(torch.zeros(3, 3, dtype=torch.float64), 0.0)
    assert reason(Run({}, (), None, {"error": str(error.value)})) == "not solvable"


def paired_runs(**changes):
    """Two methods on four seeds: the second is ahead by 1, 2, 3 and 6 points."""
    found = []
    for seed, ahead in enumerate((1.0, 2.0, 3.0, 6.0)):
        base = 60.0 + 5 * seed
        found += run_records(seed=seed, average=base, **changes)
        found += run_records(seed=seed, average=base + ahead, method="ncm", **changes)
    return found


def test_paired_differences_are_those_of_a_foreign_t_test(tmp_path):
    table = paired_table("main", compared(tmp_path, paired_runs()))
    (row,) = table.rows
    values = dict(zip((column.key for column in table.columns), row, strict=True))
    reference = ttest_rel([61.0, 67.0, 73.0, 81.0], [60.0, 65.0, 70.0, 75.0]).confidence_interval(0.95)
    assert (values["method"], values["reference"], values["seeds"]) == ("ncm", "acil", 4)
    assert values["average_accuracy_difference"] == pytest.approx(3.0)
    assert values["average_accuracy_low"] == pytest.approx(reference.low)
    assert values["average_accuracy_high"] == pytest.approx(reference.high)


def test_there_is_no_paired_table_without_three_common_seeds(tmp_path):
    few = [record for record in paired_runs() if record.get("seed", 0) < 2]
    assert paired_table("main", compared(tmp_path, few)) is None
    apart = [r for r in paired_runs() if (r.get("method") == "ncm") == (r.get("seed", 0) < 2)]
    assert paired_table("main", compared(tmp_path / "apart", apart)) is None


def test_paired_tables_are_written_in_every_format(tmp_path):
    folder = write_run(tmp_path / "run", paired_runs())
    report = write_report(folder, plots=False)
    (row,) = csv.DictReader(io.StringIO((folder / "report" / "main-paired.csv").read_text()))
    assert float(row["average_accuracy_difference"]) == pytest.approx(3.0)
    assert r"\label{tab:paired}" in (folder / "report" / "main.tex").read_text()
    assert "**Paired differences on cifar100" in report.markdown


def test_published_numbers_of_pretrained_networks_stand_below_tables_from_zero(tmp_path):
    settings = {"expansion_size": 64, "gamma": 1.0, "base": 0, "classes": 100}
    records = run_records(settings=settings)
    table = suite_table("main", compared(tmp_path, records))
    assert any("RanPAC, ViT-B/16: A_K 89.00" in note for note in table.notes)
    features = run_records(
        settings={**settings, "data.published_as": "cub"}, dataset="features:birds.npz"
    )
    notes = suite_table("main", compared(tmp_path / "features", features)).notes
    assert any("AnaCP, DINOv2" in note for note in notes)
    usual = suite_table("main", compared(tmp_path / "usual", run_records())).notes
    assert not any("pre-trained" in note for note in usual)
