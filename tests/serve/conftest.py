"""Small networks of images and of texts, and servers that use them."""

import pytest

pytest.importorskip("fastapi", reason="needs acil[serve]")
pytest.importorskip("onnxruntime", reason="needs acil[onnx]")
pytest.importorskip("onnxscript", reason="needs acil[onnx]")
pytest.importorskip("tokenizers", reason="needs acil[text]")

from acil import TextClassifier
from acil.serve.settings import Settings
from support.pictures import draw, network_file
from support.serving import client, images_of
from support.texts import sentences, stand_in_for_minilm


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    """A folder with the network and held-out images."""
    folder = tmp_path_factory.mktemp("served")
    network_file(folder / "network.onnx")
    draw(folder / "held-out", 4, seed=7)
    return folder


@pytest.fixture
def settings(place, tmp_path):
    """Settings for a model that does not exist yet, by keyword; its network lies beside it."""
    (tmp_path / "network.onnx").symlink_to(place / "network.onnx")

    def made(**options):
        return Settings(tmp_path / "m.acil", f"onnx:{tmp_path / 'network.onnx'}", **options)

    return made


@pytest.fixture
def taught(settings):
    """A client of a server that knows red and blue."""
    with client(settings()) as made:
        for name in ("red", "blue"):
            assert made.teach(name, images_of(name, 5)).status_code == 200
        yield made


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """Settings of a server for a model that knows two topics of texts."""
    stand_in_for_minilm(monkeypatch)
    model = TextClassifier(expansion_size=64)
    for topic in ("card", "travel"):
        model.learn(sentences(topic, 14), topic)
    model.save(tmp_path / "desk.acil")

    def made(**options):
        return Settings(tmp_path / "desk.acil", **options)

    return made
