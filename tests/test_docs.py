"""The examples in README and docstrings run, and links between documents lead somewhere."""

import doctest
import importlib
import pkgutil
import re
import sys
import types
from pathlib import Path

import pytest

import acil
from acil.benchmark.config import make_config
from acil.benchmark.records import Records
from acil.benchmark.runner import run
from acil.vision.backbones import BACKBONES

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def modules() -> list[str]:
    return [
        info.name
        for info in pkgutil.walk_packages(acil.__path__, "acil.")
        if "__main__" not in info.name
    ]


def test_readme_quick_start_is_six_lines_and_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (quick_start,) = blocks((ROOT / "README.md").read_text(), "python")
    lines = [line for line in quick_start.splitlines() if line.strip()]
    assert len(lines) == 6
    exec(compile(quick_start, "README.md", "exec"), {})
    assert float(capsys.readouterr().out) > 0.97


def test_own_data_set_backbone_and_method_of_the_benchmark_guide_run(tmp_path, monkeypatch):
    """The three examples of docs/benchmark.md, as one module of a user."""
    code = blocks((ROOT / "docs" / "benchmark.md").read_text(), "python")
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


def test_the_example_of_the_scale_guide_runs_alone():
    (code,) = blocks((ROOT / "docs" / "scale.md").read_text(), "python")
    names: dict[str, object] = {}
    exec(compile(code, "docs/scale.md", "exec"), names)
    assert names["accuracy"] == 1.0


@pytest.mark.parametrize("name", modules())
def test_docstring_examples_run(name):
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0


def test_some_docstrings_have_examples():
    counts = [doctest.testmod(importlib.import_module(name)).attempted for name in modules()]
    assert sum(counts) >= 10


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_relative_links_lead_to_files(document):
    text = document.read_text()
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (document.parent / target).exists(), f"{document.name} links to {target}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_names_in_code_font_that_look_like_our_files_exist(document):
    for name in re.findall(
        r"`((?:src|tests|docs|benchmarks|examples|analytic)/[\w./]+\.\w+)`", document.read_text()
    ):
        if name.startswith("analytic/"):
            name = f"src/acil/{name}"
        assert (ROOT / name).exists(), f"{document.name} names {name}"
