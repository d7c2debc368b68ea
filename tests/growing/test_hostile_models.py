"""Hostile models with right checksums: no traceback, no hang, nothing that rules a terminal."""

import copy
import faulthandler
import os
from contextlib import suppress

import pytest
from typer.testing import CliRunner

from acil import ImageClassifier, TextClassifier, load
from acil.cli import app
from acil.core.files import verify
from acil.encoders.images import build, save_backbone
from acil.errors import ACILError
from support.kinds import write_texts
from support.modelfiles import header_of, rewrite
from support.pictures import draw
from support.texts import stand_in_for_minilm

#: Names of a network that a file may give, with "source" or else with "name".
NETWORKS = [
    *("onnx:a\0b", "\0", "onnx:\ud800", "\udcff.safetensors", "\x1b[2J.safetensors", "onnx:a\nb"),
    *("onnx:/dev/zero", "onnx:/dev/stdin", "/dev/zero.safetensors", "onnx:../../etc/passwd"),
    *("onnx:pipe", "pipe.safetensors", "onnx:folder", "folder.safetensors", "onnx:loop"),
    *("onnx:missing.onnx", "onnx:", ".safetensors", "onnx:..", "onnx:text", "text.safetensors"),
    *("module:os.system", "module:", "nonsense", "\u202enonsense", "x" * 10**6),
    *("sentence-transformers:", "sentence-transformers:pipe", "sentence-transformers:\x1b[2J"),
]
#: Where in the header, and what stands there.
HOSTILE = [
    *((("images", "source"), name) for name in ["", 3, ["efficientnet-lite0"], *NETWORKS]),
    *((("backbone", "name"), name) for name in [5, None, "a\0", "\ud800", "\x1b[31m", "onnx:/dev/zero"]),
    *((("backbone", "name"), name) for name in ["pipe.safetensors", "onnx:pipe", "module:os.system"]),
    *((("backbone",), value) for value in [None, "resnet", {}, {"name": "a"}, []]),
    *((("backbone", key), "\x1b]0;title\x07") for key in ("weights", "engine", "preprocessing")),
    *((("images", "tracked"), groups) for groups in (None, 3, [3], [{}])),
    *(
        (("images", "tracked"), [{"salt": "0" * 32, "hashes": hashes, "placed": []}])
        for hashes in (3, ["zz"], [3])
    ),
    (("images", "tracked"), [{"salt": "0" * 32, "hashes": ["\u0661" * 32], "placed": []}]),
    (("images", "tracked"), [{"salt": "0" * 31, "hashes": [], "placed": []}]),
    (("gamma",), "\x1b"),
    (("parameters", "device"), "cuda:97"),
    *((("classes", 0), name) for name in ("\x1b[31m", "\0", "a/b", "A" * 300, "A" * 10**6, "\ud800")),
]


@pytest.fixture(scope="module", params=["images", "texts"])
def place(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "images":
            draw(folder / "train", 2)
            save_backbone(build("smallcnn"), folder / "network.safetensors", {})
            model = ImageClassifier(str(folder / "network.safetensors"), track=True)
        else:
            write_texts(folder / "train", 12)
            stand_in_for_minilm(patch)
            model = TextClassifier(expansion_size=None)
        model.learn(folder / "train")
        model.save(folder / "good.acil")
        write_traps(folder)
        yield folder


def write_traps(folder):
    """Write what no network can be read from."""
    (folder / "folder").mkdir()
    (folder / "folder.safetensors").mkdir()
    (folder / "loop").symlink_to("loop")
    for name in ("text", "text.safetensors"):
        (folder / name).write_text("neither a network nor a tensor")
    for name in ("pipe", "pipe.safetensors"):
        os.mkfifo(folder / name)


@pytest.fixture(autouse=True)
def no_hang():
    """End the tests, and say where they stand, if one of them waits for a pipe."""
    faulthandler.dump_traceback_later(120, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


def run(*arguments):
    result = CliRunner(env={"COLUMNS": "120"}).invoke(app, [*map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert not [c for c in result.output if not c.isprintable() and c != "\n"], ascii(result.output)
    assert len(result.output) < 20_000
    return result


def test_the_honest_model_predicts(place):
    image = min((place / "train" / "red").iterdir())
    assert run("predict", place / "good.acil", image).exit_code == 0
    assert run("inspect", place / "good.acil").exit_code == 0


@pytest.mark.parametrize(("where", "value"), HOSTILE, ids=lambda value: ascii(value)[:40])
def test_hostile_model_is_refused_in_words(place, where, value):
    path = place / "hostile.acil"
    path.write_bytes((place / "good.acil").read_bytes())
    header = copy.deepcopy(header_of(path))
    if where == ("backbone", "name"):
        # Only without a source is the network opened by this name.
        header["images"]["source"] = None
    *outer, last = where
    target = header
    for key in outer:
        target = target[key]
    target[last] = value
    if where == ("classes", 0):
        header["classes_dtype"] = f"<U{max(map(len, header['classes']))}"
    rewrite(path, header)
    assert run("inspect", path).exit_code in (0, 1)
    assert verify(path)
    refused = run("predict", path, min((place / "train" / "red").iterdir()))
    if value == "" and header["encoder"] == "text":  # the network that the header names, the default
        assert refused.exit_code == 0
        return
    assert refused.exit_code == 1
    # What a command took of a text is told before.
    assert refused.stderr.removeprefix("taken: 0-0.txt: 1 text\n").startswith("error: ")
    with suppress(ACILError):
        load(path)
