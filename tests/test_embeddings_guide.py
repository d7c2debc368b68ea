"""docs/embeddings.md: its commands and its Python run, with stand-ins for networks that it names."""

import shlex
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_iris
from typer.testing import CliRunner

from acil.cli import app
from pictures import COLOURS, draw, picture
from test_docs import blocks
from test_river import Classifier

TEXT = (Path(__file__).parents[1] / "docs" / "embeddings.md").read_text()


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
    monkeypatch.delitem(sys.modules, "acil.river", raising=False)
    for name, content in modules.items():
        module = types.ModuleType(name)
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, module)
    yield
    sys.modules.pop("acil.river", None)


def test_python_of_the_guide_runs(stand_ins, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    for name, colour in (("cat", "red"), ("dog", "blue"), ("unseen", "red")):
        picture(COLOURS[colour], generator).save(f"{name}.jpg")
    printed = []
    for code in blocks(TEXT, "python"):
        exec(compile(code, "docs/embeddings.md", "exec"), {})
        printed.append(capsys.readouterr().out.strip())
    assert len(printed) == 3
    assert printed[1] == "['cat']"
    assert printed[2].startswith("setosa\n{'setosa': ")


def test_commands_of_the_guide_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    draw(tmp_path / "photos", 3)
    iris = load_iris()
    names = [name.replace(" ", "_") for name in iris.feature_names]
    labels = iris.target_names[iris.target]
    rows = [",".join([*map(str, x), y]) for x, y in zip(iris.data, labels, strict=True)]
    Path("flowers.csv").write_text("\n".join([",".join([*names, "label"]), *rows]))
    for line in "".join(blocks(TEXT, "console")).splitlines():
        command = line.replace("timm:vit_base_patch14_dinov2", "module:pictures.Pooled")
        result = CliRunner().invoke(app, shlex.split(command.removeprefix("$ acil ")))
        assert result.exit_code == 0, result.output
    assert Path("photos.acil").exists()
