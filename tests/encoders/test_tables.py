"""Files of features: the same model as from images or arrays, and what is wrong is told."""

import io
import json
import zipfile

import numpy as np
import pandas
import pytest

from acil import ACILClassifier, ImageClassifier, load, save
from acil.core.files import describe
from acil.encoders.images.listing import holds_features
from acil.encoders.tables import read_features, write_features
from acil.errors import InputError, MissingExtraError
from support.commands import acil
from support.pictures import draw, network

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
    rows = ROWS if table.suffix == ".npz" else pandas.DataFrame(ROWS, columns=NAMES)
    assert [row["label"] for row in found] == load(model).predict(rows).tolist()
    assert found[2]["image"] == "row 3"
    assert json.loads(acil("evaluate", model, table, "--json").stdout)["accuracy"] > 80
    assert "% of 30 samples" in acil("evaluate", model, table).stdout
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
    out, network = tmp_path / "x.npz", ["--backbone", "module:support.pictures.Pooled"]
    assert "12 rows of 24 features, labels" in acil("embed", photos, "-o", out, *network).stdout
    assert "exists" in acil("embed", photos, "-o", out, *network, code=1).stderr
    acil("embed", photos, "-o", tmp_path / "x.csv", *network, code=2)
    with np.load(out) as file:
        assert sorted(set(file["labels"].tolist())) == ["blue", "green", "red", "white"]
    acil("embed", photos / "red", photos / "blue", "-o", out, "--force", *network)
    with np.load(out) as file:
        assert file["labels"].tolist() == ["red"] * 3 + ["blue"] * 3, "as acil learn takes them"
    acil("embed", photos / "red", "-o", out, "--force", *network)
    with np.load(out) as file:
        assert "labels" not in file
    model = tmp_path / "m.acil"
    told = acil("learn", out, "--model", model, code=1).stderr
    assert "no labels" in told
    assert "'label' (in npz files the array 'labels'), or give one class for all (--class" in told
    acil("learn", out, "--class", "red", "--model", model)
    assert describe(model)["images"]["source"] == "module:support.pictures.Pooled"
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
    with pytest.raises(InputError, match="no network"):
        of_images.learn(read_features(table))


def test_onnx_and_serving_need_a_network(tmp_path):
    model, small = tmp_path / "m.acil", tmp_path / "small.acil"
    acil("learn", write_table(tmp_path / "x.npz"), "--model", model)
    for command in (
        ("export", model, "--onnx", tmp_path / "m.onnx", "--inference", small),
        ("export", model, "--onnx", tmp_path / "m.onnx", "--backbone", "module:support.pictures.Pooled"),
        ("serve", model, "--port", 0),
    ):
        told = acil(*command, code=1).stderr
        assert "ONNX and serving need a network" in " ".join(told.split())
        assert "file of features" not in told
    assert not small.exists()
    acil("export", model, "--inference", small)


def test_model_made_in_python_predicts_files_and_keeps_its_labels(tmp_path):
    numbers = np.where(LABELS == "cat", 3, 7)
    save(ACILClassifier(scores="ridge", expansion_size=None).fit(ROWS, numbers), tmp_path / "m.acil")
    table = write_table(tmp_path / "x.csv")
    found = json.loads(acil("predict", tmp_path / "m.acil", table, "--json").stdout)
    assert {row["top"][0]["label"] for row in found} == {"3", "7"}
    # It learns and forgets classes that are numbers, and no others.
    np.savez(tmp_path / "x.npz", features=ROWS[:5], labels=np.full(5, 11))
    acil("learn", tmp_path / "x.npz", "--model", tmp_path / "m.acil")
    assert load(tmp_path / "m.acil").classes_.tolist() == [3, 7, 11]
    acil("forget", tmp_path / "m.acil", tmp_path / "x.npz")
    assert "of type str" in acil("learn", table, "--model", tmp_path / "m.acil", code=1).stderr
    assert load(tmp_path / "m.acil").classes_.tolist() == [3, 7]


def test_parquet_is_read_with_pandas_and_its_absence_told(tmp_path, monkeypatch):
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
        assert found.columns == (tuple(NAMES) if name == "columns" else None)

    def missing(path):
        raise ImportError("pyarrow")

    monkeypatch.setattr(pandas, "read_parquet", missing)
    with pytest.raises(MissingExtraError, match="pip install pandas pyarrow"):
        read_features(path)


@pytest.mark.parametrize("name", ["x.npz", "x.parquet", "x.csv"])
def test_missing_file_is_told(tmp_path, name):
    with pytest.raises(InputError, match=f"no file .*{name}"):
        read_features(tmp_path / name)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a,b,label\n", "no rows"),
        ("a,b,label\n1,2,x\n1,x\n", "line 3 has 2 cells"),
        ("a,b,label\n1,two,x\n", "column 'b' is not of numbers"),
        ("a,b,species\n1,2,x\n", "that of labels is called 'label'"),
        ('text,embedding\na,"[1, 2]"\n', "'embedding' of a CSV file cannot hold lists: .*--text-column"),
        ({"X": ROWS, "y": LABELS}, r"no array 'features' \(and 'labels'\) but \['X', 'y'\]"),
        ("a,b,label\n1,nan,x\n", "finite"),
        ("a,b,label\n1,2,x\n1,,x\n", "finite numbers; those of row 2 are not"),
        ("a,b,label\n1,2,x\n1,2,\n", "row 2 has no label"),
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
        ("path,label,split\na.png,x,train\n", "'split' is not of.* list .* two columns, path and label"),
        (",a,b,label\n0,1,2,x\n", "index=False"),
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


def test_npz_that_claims_more_than_memory_holds_is_told(tmp_path):
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        head, {"descr": "<f8", "fortran_order": False, "shape": (2**43, 8)}
    )
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as file:
        file.writestr("features.npy", head.getvalue() + bytes(64))
    with pytest.raises(InputError, match="Unable to allocate"):
        read_features(tmp_path / "x.npz")


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


def write_columns(path, order, rows=ROWS):
    """Write columns of these names, of which those in NAMES are the rows' own."""
    columns = [rows[:, NAMES.index(name)] if name in NAMES else rows[:, 0] for name in order]
    lines = [",".join([*order, "label"])]
    lines += [
        ",".join([*map(str, row), label])
        for row, label in zip(np.stack(columns, axis=1).tolist(), LABELS, strict=False)
    ]
    path.write_text("\n".join(lines))
    return path


def test_columns_are_put_in_the_order_of_the_model_by_their_names(tmp_path):
    table, model = write_columns(tmp_path / "x.csv", NAMES), tmp_path / "m.acil"
    swapped = write_columns(tmp_path / "swapped.csv", ["b", "a", "d", "c"])
    acil("learn", table, "--model", model)
    assert describe(model)["feature_names"] == NAMES
    assert load(model).feature_names_in_.tolist() == NAMES
    assert "with names" in acil("inspect", model).stdout
    for command in (("predict", model), ("evaluate", model), ("audit", model, "--images")):
        found = [acil(*command, path, "--json") for path in (table, swapped)]
        assert found[0].stdout == found[1].stdout
        assert "Warning" not in found[1].stderr
    acil("learn", swapped, "--model", model)
    twice = tmp_path / "twice.acil"
    for _ in range(2):
        acil("learn", table, "--model", twice)
    assert np.array_equal(load(model).coef_, load(twice).coef_)
    acil("forget", model, write_columns(tmp_path / "some.csv", NAMES[::-1], ROWS[:5]))
    acil("forget", twice, write_columns(tmp_path / "some.csv", NAMES, ROWS[:5]))
    assert np.array_equal(load(model).coef_, load(twice).coef_)


def test_other_columns_are_refused(tmp_path):
    table, model = write_columns(tmp_path / "x.csv", NAMES), tmp_path / "m.acil"
    acil("learn", table, "--model", model)
    before = model.read_bytes()
    for order, words in (
        (["a", "e", "c", "d"], "'b' is missing and 'e' is not one of its columns"),
        (["a", "b", "c"], "'d' is missing"),
        ([*NAMES, "e"], "'e' is not one of its columns"),
    ):
        other = write_columns(tmp_path / "other.csv", order)
        for command in (
            ("learn", other, "--model", model),
            *(("predict", model, other), ("evaluate", model, other), ("forget", model, other)),
            ("audit", model, "--images", other),
        ):
            if command[0] == "forget":
                other.write_text("\n".join(other.read_text().split("\n")[:4]))
            assert words in acil(*command, code=1).stderr
    assert model.read_bytes() == before


def test_files_and_models_without_names_go_together_with_others(tmp_path):
    table, plain = write_table(tmp_path / "x.csv"), write_table(tmp_path / "x.npz")
    models = tmp_path / "csv.acil", tmp_path / "npz.acil"
    for model, first in zip(models, (table, plain), strict=True):
        acil("learn", first, "--model", model)
        assert acil("predict", model, table).stdout == acil("predict", model, plain).stdout
        assert "Warning" not in acil("learn", plain, "--model", model).stderr
        acil("learn", table, "--model", model)
    assert [describe(model)["feature_names"] for model in models] == [NAMES, None]
    np.savez(tmp_path / "narrow.npz", features=ROWS[:, :3], labels=LABELS)
    assert "3 features" in acil("learn", tmp_path / "narrow.npz", "--model", models[0], code=1).stderr
