"""ONNX: one graph from pixels or tokens to scores that gives what PyTorch gives, or none is written."""

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from acil import ACILClassifier, ImageClassifier
from acil.core.classifier import learnt_of
from acil.core.expansion import Weights
from acil.encoders.images import WrappedBackbone
from acil.encoders.images.decode import decode
from acil.encoders.images.embedder import TorchEmbedder, embed_files
from acil.encoders.images.onnx_models import OnnxEmbedder, exported_network
from acil.encoders.text import clean_text, open_encoder
from acil.encoders.text.encoder import EncodedTexts
from acil.encoders.text.networks import ModuleEncoder
from acil.errors import InputError, UnsupportedError
from acil.growing import export
from acil.growing.export import TEXT_TOLERANCE, TOLERANCE, export_onnx
from support.commands import acil
from support.pictures import PREPROCESSING, Pooled, draw, exported
from support.texts import TOPICS, sentences, tiny_encoder

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


@pytest.fixture(scope="module")
def network():
    return OnnxEmbedder(exported(), "pooled", None, PREPROCESSING, 1.0)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    return draw(tmp_path_factory.mktemp("export"), 5)


@pytest.mark.parametrize("expansion_size", [None, 32])
def test_graph_gives_the_scores_and_classes_of_torch(network, pictures, tmp_path, expansion_size):
    model = ImageClassifier(network, expansion_size=expansion_size, clip_norm=expansion_size and 0.5)
    model.learn(pictures)
    files = sorted(pictures.glob("*/*.png"))
    pixels = torch.stack([decode(path, 8) for path in files])
    path = tmp_path / "m.onnx"
    done = export_onnx(model.snapshot.head, model.embedder, path)
    assert (done.compared, done.bytes) == (8, path.stat().st_size)
    assert done.difference < TOLERANCE
    # Where the code lies is nobody's business.
    assert str(Path(torch.__file__).parents[1]).encode() not in path.read_bytes()
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert [output.name for output in session.get_outputs()] == ["scores", "probabilities"]
    scores, probabilities = session.run(None, {"pixels": pixels.numpy()})
    features = embed_files(files, model.embedder).features.numpy()
    expected = model.snapshot.head.decision_function(features)
    np.testing.assert_allclose(scores, expected, atol=TOLERANCE)
    assert (scores.argmax(1) == expected.argmax(1)).all()
    np.testing.assert_allclose(
        probabilities, model.snapshot.head.predict_proba(features), atol=TOLERANCE
    )
    facts = session.get_modelmeta().custom_metadata_map
    assert json.loads(facts["acil_classes"]) == model.classes_
    assert json.loads(facts["acil_backbone"]) == model.embedder.identity


def odd_images(folder):
    """Write images of which each meets another rule of the preprocessing."""
    generator = np.random.default_rng(0)
    colours = generator.integers(0, 256, (40, 30, 4), dtype=np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6
    plain, clear = Image.fromarray(colours[..., :3]), Image.fromarray(colours)
    plain.save(folder / "turned.jpg", exif=exif)
    clear.save(folder / "transparent.png")
    clear.convert("LA").save(folder / "grey transparent.png")
    plain.convert("P").save(folder / "palette.png", transparency=3)
    plain.convert("CMYK").save(folder / "cmyk.jpg")
    Image.fromarray(colours[..., 0].astype(np.uint16) * 250).save(folder / "sixteen.png")
    plain.resize((900, 9)).save(folder / "long.png")
    plain.resize((5, 7)).save(folder / "small.png")
    return sorted(folder.iterdir())


@pytest.mark.parametrize("crop", [1.0, 0.8])
def test_script_beside_the_graph_gives_our_pixels_and_scores(pictures, tmp_path, crop):
    model = ImageClassifier(TorchEmbedder(WrappedBackbone(Pooled(), "pooled", 24, PREPROCESSING), crop))
    model.learn(pictures)
    head = model.snapshot.head
    export_onnx(head, model.embedder, tmp_path / "m.onnx")
    (tmp_path / "odd").mkdir()
    files = odd_images(tmp_path / "odd")
    script = runpy.run_path(str(tmp_path / "m.onnx.py"))
    for file in files:
        pixels = script["pixels"](file)
        assert np.array_equal(pixels[0], decode(file, 8, crop=crop).numpy()), file.name
        scores = script["session"].run(["scores"], {"pixels": pixels})[0]
        features = embed_files([file], model.embedder).features.numpy()
        np.testing.assert_allclose(scores, head.decision_function(features), atol=TOLERANCE)
    command = [sys.executable, tmp_path / "m.onnx.py", *files]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    labels = [line.split()[-2] for line in done.stdout.splitlines()]
    assert labels == model.predict(files, unknown_above=None)


def test_users_networks_of_any_names_and_outputs_become_the_same_graph(pictures, tmp_path):
    import onnx

    content = exported_network(WrappedBackbone(Pooled(), "pooled", 24, PREPROCESSING))
    own = onnx.load_from_string(content)
    inner = own.graph.node[0].output[0]
    export._rename(own.graph, {"pixels": "images", inner: "scores"})
    own.graph.output.append(onnx.helper.make_tensor_value_info("scores", onnx.TensorProto.FLOAT, None))
    model = ImageClassifier(OnnxEmbedder(own.SerializeToString(), "own", None, PREPROCESSING, 1.0))
    model.learn(pictures)
    path = tmp_path / "a \"name'.onnx"
    export_onnx(model.snapshot.head, model.embedder, path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert [end.name for end in session.get_inputs()] == ["pixels"]
    assert [end.name for end in session.get_outputs()] == ["scores", "probabilities"]
    files = sorted(pictures.glob("*/*.png"))
    command = [sys.executable, f"{path}.py", *files]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    labels = [line.split()[-2] for line in done.stdout.splitlines()]
    assert labels == model.predict(files, unknown_above=None)


def test_one_class_that_scores_the_same_for_all_images_has_a_graph(network, tmp_path):
    features = np.random.default_rng(0).normal(size=(9, network.num_features))
    head = ACILClassifier(scores="ridge", expansion_size=16, fit_intercept=True).fit(
        features, ["cat"] * 9
    )
    assert export_onnx(head, network, tmp_path / "m.onnx").difference < TOLERANCE


def test_graph_that_differs_is_not_written_though_scores_hardly_do(
    network, pictures, tmp_path, monkeypatch
):
    model = ImageClassifier(network, expansion_size=None)
    model.learn(pictures)
    head, constant = model.snapshot.head, export._constant
    analytic = learnt_of(head).model
    before = analytic.weights()
    # Scores that are all wrong, by less than the absolute tolerance
    monkeypatch.setattr(export, "_constant", lambda values: constant(2e-6 * values))
    scaled = Weights(1e-6 * before.coef, None, 1e-6 * before.intercept, before.empty)
    monkeypatch.setattr(type(analytic), "weights", lambda model: scaled)
    path = tmp_path / "m.onnx"
    path.write_text("old")
    with pytest.raises(UnsupportedError, match="not written"):
        export_onnx(head, network, path)
    assert path.read_text() == "old"


def test_command_writes_and_says_how_well_it_agrees(pictures, tmp_path):
    backbone = ["--backbone", "module:support.pictures.Pooled"]
    model, graph, images = tmp_path / "m.acil", tmp_path / "m.onnx", pictures
    acil("learn", images, "--model", model, *backbone)
    written = ["export", model, "--onnx", graph, *backbone]
    (difference,) = re.findall(r"agree on 8 images: .* within (\S+)", acil(*written).stdout)
    assert float(difference) < 1e-3
    assert "exists" in acil(*written, code=1).stderr


#: Longer than both networks read, with marks of their own, and with what is no text.
ODD_TEXTS = [
    "card",
    "rain " * 900,
    "Cafe\u0301\x07 PIN\0blocked",
    "\u202e\u05d0 snow",
    " \t two\nlines ",
    "日本 card",
]


def learnt_texts(encoder, **settings):
    """Return a head that knows the topics."""
    texts = [text for topic in TOPICS for text in sentences(topic, 12)]
    labels = [topic for topic in TOPICS for _ in range(12)]
    made = ACILClassifier(scores="discriminant", **settings)
    return made.fit(encoder.encode(texts).features, labels)


def require_same_from_script(encoder, head, path):
    """Run the script beside a graph, which imports no acil, and compare what it says."""
    texts = [sentences(topic, 3, seed=1)[2] for topic in TOPICS] + ODD_TEXTS
    expected = head.decision_function(encoder.encode(texts).features)
    script = runpy.run_path(f"{path}.py")
    assert [script["clean"](text) for text in ODD_TEXTS[2:]] == list(map(clean_text, ODD_TEXTS[2:]))
    # Together, filled up to the longest, and alone
    for given in (texts, *([text] for text in texts)):
        scores, probabilities = script["session"].run(None, script["tokens"](given))
        place = texts.index(given[0])
        np.testing.assert_allclose(
            scores, expected[place : place + len(given)], rtol=0, atol=TEXT_TOLERANCE
        )
        np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-5)
    hidden = "import sys; sys.modules.update(acil=None, torch=None, transformers=None)"
    run = f"import runpy; runpy.run_path({f'{path}.py'!r}, run_name='__main__')"
    command = [sys.executable, "-c", f"{hidden}; {run}"]
    lines = [text for text in texts if text.isprintable()]
    for arguments, piped in ((lines, ""), ([], "\n".join(lines))):
        done = subprocess.run(
            [*command, *arguments], input=piped, capture_output=True, text=True, check=True
        )
        labels = [line.split("\t")[1] for line in done.stdout.splitlines()]
        assert labels == head.predict(encoder.encode(lines).features).tolist()


@pytest.fixture(scope="module")
def encoder():
    """The small network for texts, exported once: exporting takes seconds."""
    made = tiny_encoder()
    content = made.to_onnx()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(made, "to_onnx", lambda: content)
        yield made


def test_graph_of_texts_gives_the_scores_of_torch_and_so_does_the_script_beside_it(encoder, tmp_path):
    path = tmp_path / "a \"desk'.onnx"
    head = learnt_texts(encoder, expansion_size=32)
    done = export_onnx(head, encoder, path)
    assert done.difference < TEXT_TOLERANCE
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert [end.name for end in session.get_inputs()] == ["input_ids", "attention_mask"]
    facts = session.get_modelmeta().custom_metadata_map
    assert json.loads(facts["acil_classes"]) == sorted(TOPICS)
    assert json.loads(facts["acil_backbone"]) == encoder.identity
    require_same_from_script(encoder, head, path)


@pytest.mark.slow
def test_graph_of_minilm_gives_the_scores_of_torch(tmp_path):
    encoder = open_encoder()
    head = learnt_texts(encoder, expansion_size=2048)
    assert export_onnx(head, encoder, tmp_path / "desk.onnx").difference < TEXT_TOLERANCE
    require_same_from_script(encoder, head, tmp_path / "desk.onnx")


def test_graph_of_texts_that_cannot_be_or_differs_is_not_written(encoder, tmp_path, monkeypatch):
    head = learnt_texts(encoder)
    other = tmp_path / "tokenizer.json"
    other.write_text("of another network")
    with pytest.raises(InputError, match="another network"):
        export_onnx(head, encoder, tmp_path / "desk.onnx", force=False)
    own = ModuleEncoder(Own(), "module:own")
    with pytest.raises(UnsupportedError, match="default"):
        export_onnx(head, own, tmp_path / "desk.onnx")
    real = encoder.encode
    wrong = lambda texts: EncodedTexts(real(texts).features + 1e-3, 0)  # noqa: E731
    monkeypatch.setattr(encoder, "encode", wrong)
    with pytest.raises(UnsupportedError, match="not written"):
        export_onnx(head, encoder, tmp_path / "desk.onnx")
    assert [file.name for file in tmp_path.iterdir()] == ["tokenizer.json"]
    assert other.read_text() == "of another network"


class Own:
    """A user's network for texts."""

    version = "1"

    def encode(self, texts):
        return np.ones((len(texts), 16), dtype=np.float32)
