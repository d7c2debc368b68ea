"""`acil inspect`: what a file holds, for people and machines, without torch."""

import json
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file
from typer.testing import CliRunner

import acil
from acil import ACILClassifier, load, save
from acil.cli import app
from acil.core.files import describe
from support.modelfiles import rewrite

WITHOUT_TORCH = """
import sys
from pathlib import Path
from acil.cli.models import inspect
inspect(Path(sys.argv[1]), "--json" in sys.argv)
heavy = {"torch", "sklearn", "scipy"} & set(sys.modules)
sys.exit(f"imported {heavy}" if heavy else 0)
"""


def run(*arguments, command="inspect"):
    return CliRunner(env={"COLUMNS": "120"}).invoke(app, [command, *map(str, arguments)])


def write(path, n_classes=3, inference=False, **options):
    X = np.random.default_rng(0).normal(size=(2 * n_classes, 3))
    y = np.repeat([f"class {number:03}" for number in range(n_classes)], 2)
    model = ACILClassifier(**({"scores": "ridge"} | {"expansion_size": 5, "gamma": 2.0} | options)).fit(
        X, y
    )
    model.backbone_ = {"name": "resnet18", "sha256": "c0ffee"}
    save(model, path, inference=inference)
    return path


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_torch_is_not_imported(tmp_path, options):
    command = [sys.executable, "-c", WITHOUT_TORCH, str(write(tmp_path / "m.acil")), *options]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (finished.returncode, finished.stderr) == (0, "")
    assert "class 001" in finished.stdout


def test_json_is_the_description(tmp_path):
    path = write(tmp_path / "m.acil")
    result = run(path, "--json")
    report = json.loads(result.stdout)
    assert "gram and moment are sums over samples" in report.pop("privacy")
    assert report.pop("embeddings") == {"sums_bytes": 280, "embeddings_bytes": 72, "smaller": True}
    assert report == describe(path)
    assert (result.exit_code, result.stderr) == (0, "")


def test_people_see_the_facts(tmp_path):
    path = write(tmp_path / "m.acil", fit_intercept=True)
    report = describe(path)
    shown = run(path).stdout
    for text in (
        *("3 classes from 6 samples", "class 002", "gram", "float64", "3 features", "5 (relu), seed 0"),
        *("fit_intercept", f"{report['gamma_relative']:.3g} of trace(gram)"),
        *(f"{report['condition']:.2g}", report["fingerprint"], "name: resnet18, sha256: c0ffee"),
        *(f"acil {acil.__version__}", f"{report['file_bytes']:,}"),
        "Stores no sample; gram and moment are sums over samples and can reveal",
        # Of features in float32, fewer bytes than these sums have
        "would take fewer bytes (72) than these sums (280)",
    ):
        assert text in shown


def test_many_classes_are_cut_for_people_and_not_for_machines(tmp_path):
    path = write(tmp_path / "m.acil", n_classes=37)
    shown = run(path).stdout
    assert "class 029" in shown
    assert "class 030" not in shown
    assert "... and 7 more" in shown
    assert len(json.loads(run(path, "--json").stdout)["classes"]) == 37


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"inference": True}, "no sums over samples and no γ"),
        ({"inference": True, "expansion_size": 50}, "treat the file like the samples"),
        ({"inference": True, "standardize": True}, "deviation of each feature"),
        ({"solver": "recursive"}, "rfaum and coef are computed from sums"),
        ({"expansion_size": None}, "expansion    none"),
        ({"gamma": "auto"}, "(auto)"),
    ],
)
def test_other_kinds_of_models(tmp_path, options, words):
    result = run(write(tmp_path / "m.acil", n_classes=20, **options))
    assert result.exit_code == 0
    assert words in result.stdout


def test_labels_cannot_rule_the_terminal(tmp_path):
    path = tmp_path / "m.acil"
    labels = ["\x1b[31mred", "[bold]x[/bold]", "line\nbreak", "\x9b2J"]
    save(ACILClassifier(scores="ridge", expansion_size=5).fit(np.eye(4), labels), path)
    result = run(path)
    assert result.exit_code == 0
    for text in ("\\x1b[31mred", "[bold]x[/bold]", "line\\nbreak", "\\x9b2J"):
        assert text in result.stdout
    assert "\x1b[31m" not in result.stdout
    assert json.loads(run(path, "--json").stdout)["classes"] == sorted(labels)


@pytest.mark.parametrize("options", [{}, {"inference": True}, {"solver": "recursive"}], ids=str)
def test_verify_says_a_line_for_each_check(tmp_path, options):
    path = write(tmp_path / "m.acil", **options)
    shown = run(path, command="verify")
    assert shown.exit_code == 0
    assert all(line.startswith("ok ") for line in shown.stdout.splitlines())
    report = json.loads(run(path, "--json", command="verify").stdout)
    assert report["ok"]
    assert [check["name"] for check in report["checks"]][:3] == ["header", "checksums", "values"]
    assert len(shown.stdout.splitlines()) == len(report["checks"])


def test_verify_fails_with_an_exit_code(tmp_path):
    path = write(tmp_path / "m.acil")
    rewrite(path, coef=load_file(path)["coef"] * (1 + 1e-9))
    load(path)
    shown = run(path, command="verify")
    assert shown.exit_code == 1
    assert "FAILED weights: solve the sums to" in shown.stdout
    path.write_bytes(b"nothing")
    shown = run(path, "--json", command="verify")
    assert shown.exit_code == 1
    assert [check["ok"] for check in json.loads(shown.stdout)["checks"]] == [False]
