"""Files of features: the same model as from images or arrays, and what is wrong is told."""

import json

import numpy as np
import pytest

from acil import ACILClassifier, ImageClassifier, load, save
from acil.errors import InputError, MissingExtraError
from acil.images.features import read_features, write_features
from acil.modelfile import describe
from acil.vision.listing import holds_features
from commands import acil
from pictures import draw, network

ROWS = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)
LABELS = np.where(ROWS[:, 0] > 0, "cat", "dog")
NAMES = ["a", "b", "c", "d"]


def write_table(path):
    """Write the rows as a file of the format that its name says."""
    if path.suffix == ".npz":
        np.savez(path, features=ROWS, labels=LABELS)
    else:
        separator = "\t" if path.suffix == ".tsv" else ","
        lines = [[*NAMES, "label"]]
        lines += [[*map(str, row), label] for row, label in zip(ROWS.tolist(), LABELS, strict=True)]
        path.write_text("\n".join(separator.join(line) for line in lines))
    return path


@pytest.fixture(params=["x.npz", "x.csv", "x.tsv"])
def table(request, tmp_path):
    return write_table(tmp_path / request.param)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return draw(tmp_path_factory.mktemp("photos"), 3)


def test_commands_learn_predict_evaluate_and_forget_features(table, tmp_path):
    model = tmp_path / "m.acil"
    report = json.loads(acil("learn", table, "--model", model, "--json").stdout)
    assert report["totals"] == {"cat": int((LABELS == "cat").sum()), "dog": int((LABELS == "dog").sum())}
    acil("learn", table, "--model", model)
    assert describe(model)["n_samples"] == 60
    acil("undo", model)
    assert describe(model)["n_samples"] == 30
    found = json.loads(acil("predict", model, table, "--json", "--unknown-above", 0).stdout)
    assert [row["label"] for row in found] == load(model).predict(ROWS).tolist()
    assert found[2]["image"] == "row 3"
    assert json.loads(acil("evaluate", model, table, "--json").stdout)["accuracy"] > 80
    write_table(tmp_path / "some.npz")
    np.savez(tmp_path / "some.npz", features=ROWS[:5], labels=LABELS[:5])
    acil("forget", model, tmp_path / "some.npz")
    rest = ImageClassifier(track=False)
    np.savez(tmp_path / "rest.npz", features=ROWS[5:], labels=LABELS[5:])
    rest.learn(read_features(tmp_path / "rest.npz"))
    np.testing.assert_allclose(load(model).coef_, rest.snapshot.head.coef_, rtol=1e-9, atol=1e-12)


def test_features_of_images_give_the_model_of_the_images(photos, tmp_path):
    direct = ImageClassifier(network())
    direct.learn(photos)
    write_features(tmp_path / "x.npz", ImageClassifier(network()).prepare(photos))
    stored = ImageClassifier(network())
    samples = read_features(tmp_path / "x.npz")
    stored.learn(samples)
    assert np.array_equal(stored.snapshot.head.coef_, direct.snapshot.head.coef_)
    image = photos / "red" / "0-0.png"
    assert stored.classify([image])[0].top == direct.classify([image])[0].top
    # It is tracked like the images themselves.
    assert len(stored.learn(photos).repeated) == 12
    assert stored.classify(samples)[0].image == str(photos / "blue" / "0-0.png")


def test_embed_writes_labels_where_there_are_folders_of_classes(photos, tmp_path):
    out, network = tmp_path / "x.npz", ["--backbone", "module:pictures.Pooled"]
    assert "12 rows of 24 features, labels" in acil("embed", photos, "-o", out, *network).stdout
    assert "exists" in acil("embed", photos, "-o", out, *network, code=1).stderr
    acil("embed", photos, "-o", tmp_path / "x.csv", *network, code=2)
    with np.load(out) as file:
        assert sorted(set(file["labels"].tolist())) == ["blue", "green", "red", "white"]
    acil("embed", photos / "red", "-o", out, "--force", *network)
    with np.load(out) as file:
        assert "labels" not in file
    model = tmp_path / "m.acil"
    assert "no labels" in acil("learn", out, "--model", model, code=1).stderr
    acil("learn", out, "--class", "red", "--model", model)
    assert describe(model)["images"]["source"] == "module:pictures.Pooled"
    found = acil("predict", model, photos / "red", *network, "--json").stdout
    assert len(json.loads(found)) == 3


def test_features_and_images_are_not_mixed(photos, tmp_path):
    table, model = write_table(tmp_path / "x.npz"), tmp_path / "m.acil"
    acil("learn", table, "--model", model)
    images = photos / "red"
    for command in (("predict", model, images), ("learn", images, "--class", "a", "--model", model)):
        assert "learnt from features" in acil(*command, code=1).stderr
    assert "one file of features" in acil("learn", table, images, "--model", model, code=1).stderr
    of_images = ImageClassifier(network())
    of_images.learn(photos)
    with pytest.raises(InputError, match="no network is known"):
        of_images.learn(read_features(table))


def test_model_made_in_python_predicts_files_and_keeps_its_labels(tmp_path):
    numbers = np.where(LABELS == "cat", 3, 7)
    save(ACILClassifier(expansion_size=None).fit(ROWS, numbers), tmp_path / "m.acil")
    table = write_table(tmp_path / "x.csv")
    found = json.loads(acil("predict", tmp_path / "m.acil", table, "--json").stdout)
    assert {row["top"][0]["label"] for row in found} == {"3", "7"}


def test_parquet_is_read_with_pandas_and_its_absence_told(tmp_path, monkeypatch):
    import pandas

    tables = {
        "columns": pandas.DataFrame(dict(zip(NAMES, ROWS.T, strict=True)) | {"label": LABELS}),
        "lists": pandas.DataFrame({"embedding": [*ROWS], "label": LABELS, "id": range(30)}),
    }
    for name, table in tables.items():
        monkeypatch.setattr(pandas, "read_parquet", lambda path, table=table: table)
        path = tmp_path / f"{name}.parquet"
        path.touch()
        found = read_features(path)
        assert np.array_equal(found.features, ROWS)
        assert found.names == LABELS.tolist()

    def missing(path):
        raise ImportError("pyarrow")

    monkeypatch.setattr(pandas, "read_parquet", missing)
    with pytest.raises(MissingExtraError, match="pip install pandas pyarrow"):
        read_features(path)


@pytest.mark.parametrize("name", ["x.npz", "x.parquet", "x.csv"])
def test_missing_file_is_told(tmp_path, name):
    with pytest.raises(InputError, match=f"There is no file .*{name}"):
        read_features(tmp_path / name)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a,b,label\n", "no rows"),
        ("a,b,label\n1,2,x\n1,x\n", "line 3 has 2 cells"),
        ("a,b,label\n1,two,x\n", "column 'b' is not of numbers"),
        ("a,b,label\n1,nan,x\n", "finite"),
        ("a,b,label\n1,2,../x\n", "class name"),
        ({"labels": LABELS}, "features"),
        ({"features": ROWS[0]}, "shape"),
        ({"features": ROWS, "labels": LABELS[:3]}, "30 rows of features, but 3 labels"),
        ({"features": np.array([{}, {}])}, "Cannot read"),
        ({"features": ROWS, "network": np.array('{"identity": {"name": 3}}')}, "network"),
        (b"PK\3\4 no archive", "Cannot read"),
        (b"", "Cannot read"),
        (b"no archive", "no npz file of plain arrays"),
        ({"features": np.where(ROWS[2, 0] == ROWS, np.nan, ROWS)}, "those of row 3 are not"),
        ({"features": ROWS, "labels": LABELS[:, None]}, "shape"),
        ({"features": ROWS, "labels": np.full(30, b"x")}, "row 1 of its labels is b'x'"),
        (
            {"features": ROWS, "labels": np.where(np.arange(30) == 4, np.nan, 1)},
            "row 5 of its labels is nan",
        ),
        ({"features": ROWS, "labels": np.full(30, 0.5)}, "no whole number"),
        ('a,b,label\n1,"2,x\n', "Cannot read"),
        ("label,a,a\nx,1,2\n", "same name"),
        ({"features": ROWS, "labels": np.array("x")}, "shape"),
        ({"features": ROWS + 1j}, "complex"),
    ],
)
def test_bad_file_is_told(tmp_path, content, words):
    path = tmp_path / ("x.csv" if isinstance(content, str) else "x.npz")
    if isinstance(content, dict):
        np.savez(path, **content)
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=words):
        read_features(path)


def test_list_of_images_is_no_file_of_features(tmp_path):
    (tmp_path / "list.csv").write_text("path,label\na.png,cat\n")
    assert not holds_features(tmp_path / "list.csv")
    assert not holds_features(tmp_path)
    assert holds_features(write_table(tmp_path / "x.csv"))


def test_rows_of_no_network_are_not_tracked(tmp_path):
    np.savez(tmp_path / "rows.npz", features=ROWS, labels=LABELS)
    model = tmp_path / "m.acil"
    refused = acil("learn", tmp_path / "rows.npz", "--model", model, "--track", code=1)
    assert "--track needs images" in refused.stderr
    acil("learn", tmp_path / "rows.npz", "--model", model)
    np.savez(tmp_path / "some.npz", features=ROWS[:2], labels=LABELS[:2])
    told = acil("forget", model, tmp_path / "some.npz").stderr
    assert "a model of features cannot always tell" in told
    assert "--track" not in told
