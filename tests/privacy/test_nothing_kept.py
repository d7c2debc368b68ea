"""Nothing of a sample stays but what is meant to: searched in every file and every object."""

import gc
import weakref

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sklearn.datasets import load_digits
from typer.testing import CliRunner

from acil import ACILClassifier, save
from acil.cli import app
from acil.core.classifier import learnt_of
from acil.core.files import pack
from support.kinds import KINDS

#: Kept by design, in a run directory: features of whole splits, so that a run can go on.
FEATURE_CACHE = "checkpoint/features"


def marks(*arrays):
    """Return byte strings by which rows are found again: four numbers in a row, in both precisions."""
    found = []
    for rows in arrays:
        for row in np.asarray(rows)[:20]:
            place = int(np.convolve(row != 0, np.ones(4), "valid").argmax())
            part = row[place : place + 4]
            found += [part.astype(np.float64).tobytes(), part.astype(np.float32).tobytes()]
    return found


def marked_model(**settings):
    """Learn samples nobody else holds; return the model and the marks of samples and expanded rows."""
    rng = np.random.default_rng()
    X, y = rng.random((60, 12)), np.arange(60) % 3
    clf = ACILClassifier(expansion_size=48, gamma=1.0, **({"scores": "ridge"} | settings)).fit(
        X[:40], y[:40]
    )
    clf.partial_fit(X[40:], y[40:]).predict(X)
    for i in range(6):  # single samples, that wait to be added together
        clf.partial_fit(X[i : i + 1], y[i : i + 1]).predict(X[:1])
    expanded = learnt_of(clf).model.expansion(torch.from_numpy(X)).numpy()
    return clf, marks(X, expanded)


def contents(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def holders(wanted):
    """Return the objects of this process that hold one of the byte strings, other than these."""
    own = {id(mark) for mark in wanted}
    seen, found = set(), []
    gc.collect()
    for holder in gc.get_objects():
        for thing in (holder, *gc.get_referents(holder)):
            if id(thing) in own or id(thing) in seen:
                continue
            # Not isinstance: some objects of torch warn when they are asked for their class.
            kind = type(thing)
            if kind not in (torch.Tensor, torch.nn.Parameter, np.ndarray, bytes, bytearray):
                continue
            seen.add(id(thing))
            if kind in (torch.Tensor, torch.nn.Parameter):
                if thing.device.type != "cpu" or thing.layout != torch.strided:
                    continue
                thing = thing.detach().contiguous().view(-1).view(torch.uint8).numpy()
            data = thing if kind in (bytes, bytearray) else thing.tobytes()
            found += [kind] * any(mark in data for mark in wanted)
    return found


def test_the_search_finds_what_is_there(tmp_path):
    kept = [np.random.default_rng().random((30, 8))]
    wanted = marks(*kept)
    assert holders(wanted)
    (tmp_path / "f").write_bytes(kept[0].tobytes())
    assert any(mark in contents(tmp_path)["f"] for mark in wanted)


@pytest.mark.parametrize("settings", [{}, {"solver": "recursive"}, {"scores": "discriminant"}], ids=str)
def test_no_file_of_a_model_holds_a_sample(settings, tmp_path):
    clf, wanted = marked_model(**settings)
    save(clf, tmp_path / "full.acil")
    save(clf, tmp_path / "inference.acil", inference=True)
    for name, value in pack(clf).items():
        data = value.encode() if isinstance(value, str) else value.contiguous().numpy().tobytes()
        (tmp_path / name).write_bytes(data)
    files = contents(tmp_path)
    assert len(files) > 4
    assert not [name for name, data in files.items() if any(mark in data for mark in wanted)]


@pytest.mark.parametrize("settings", [{}, {"solver": "recursive"}, {"scores": "discriminant"}], ids=str)
def test_no_object_of_the_process_holds_a_sample_once_the_model_is_compact(settings):
    clf, wanted = marked_model(**settings)
    assert clf.compact().n_samples_ == 66
    assert not holders(wanted)


@pytest.mark.parametrize("scores", ["ridge", "discriminant"])
def test_factor_which_recent_samples_have_corrected_is_gone_once_the_model_is_compact(scores):
    clf, _ = marked_model(scores=scores)
    factor = weakref.ref(learnt_of(clf).model.ridge.solution.factor)
    assert factor().rank
    clf.compact()
    gc.collect()
    assert factor() is None


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.thing)
def test_samples_and_features_are_neither_in_a_model_file_nor_in_the_process(kind, tmp_path):
    kind.write(tmp_path / "train", 12)
    model = kind.new()
    wanted = marks(model.prepare(tmp_path / "train").features)
    # A part of each image, or the whole of each text
    part = slice(60, 100) if kind.thing == "image" else slice(None)
    wanted += [path.read_bytes()[part] for path in (tmp_path / "train").rglob("*.*")]
    model.learn(tmp_path / "train")
    model.save(tmp_path / "m.acil")
    data = (tmp_path / "m.acil").read_bytes()
    assert not any(mark in data for mark in wanted)
    model.snapshot.head.compact()
    assert not holders(wanted)


def test_a_run_directory_keeps_features_in_its_cache_and_nowhere_else(tmp_path):
    run = ["bench", "run", "--dataset", "digits", "--seeds", "0", "--phases", "5"]
    options = ["--set", "recipe.training.epochs=1", "--out", str(tmp_path / "run")]
    assert CliRunner().invoke(app, [*run, *options]).exit_code == 0
    files = contents(tmp_path / "run")
    cached = [name for name in files if name.startswith(FEATURE_CACHE)]
    rows = [t for name in cached for t in load_file(tmp_path / "run" / name).values() if t.ndim == 2]
    wanted = marks(*(part.float().numpy() for part in rows))
    pixels = load_digits().images.astype(np.uint8).reshape(-1, 64)
    wanted += [image.tobytes() for image in pixels[:50]]
    found = [name for name, data in files.items() if any(mark in data for mark in wanted)]
    assert sorted(found) == sorted(cached)
    assert cached
