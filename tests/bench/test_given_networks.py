"""Networks that others have trained, features, and the benchmark from Python."""

import shutil
import sys
import types

import numpy as np
import pytest
from PIL import Image
from sklearn.linear_model import RidgeClassifierCV

import acil.bench
from acil.bench.methods import available, resolve
from acil.bench.report import write_report
from acil.errors import InputError
from support.forks import finished
from support.pictures import Pooled, draw
from support.running import command, records, timeless, write_features

pytestmark = pytest.mark.usefixtures("without_plots")


@pytest.fixture(scope="module")
def features(tmp_path_factory):
    """Ten classes whose features are a thousand times smaller than those that γ = 1 suits."""
    path = tmp_path_factory.mktemp("features") / "mine.npz"
    return path, write_features(path, 10, 12, (30, 20), spread=1.0, noise=0.9, scale=1e-3)


def test_acil_is_good_on_features_of_any_scale(features, tmp_path):
    path, arrays = features
    found = acil.bench.run(dataset=f"features:{path}", phases=5, seeds=0, expansion_size=None)
    (summary,) = [record for record in found if record["kind"] == "summary"]
    # The best ridge of those tried, on the same features
    ridge = RidgeClassifierCV(np.logspace(-9, 3, 25), fit_intercept=False)
    ridge.fit(arrays["train_features"], arrays["train_labels"])
    best = 100 * ridge.score(arrays["test_features"], arrays["test_labels"])
    assert summary["settings"]["gamma"] == "auto"
    assert summary["last_accuracy"] > best - 3
    assert summary["joint_difference"] < 1e-9


def test_comparison_on_features_leaves_out_what_needs_images(features, tmp_path, caplog):
    arguments = ("--dataset", f"features:{features[0]}", "--suite", "compare", "--seeds", "0")
    result = command(*arguments, "--expansion-size", "64", "--out", tmp_path / "run")
    assert result.exit_code == 0
    trained = [name for name in available() if resolve(name).trains_network]
    told = [message for message in caplog.messages if message.startswith("Left out")]
    assert told == [
        f"Left out: {', '.join(trained)} (no images to train a network on); fecam (negative features; "
        "settings.fecam_tukey=1 takes them)."
    ]
    assert records(tmp_path / "run", "failure") == []
    done = {record["method"] for record in records(tmp_path / "run", "summary")}
    assert done == set(available()) - set(trained) - {"fecam"}
    assert "acil" in done
    planned = command(*arguments, "--dry-run")
    assert told[0] in planned.stdout


def test_nothing_but_methods_that_need_images_is_an_error(features):
    with pytest.raises(InputError, match=r"icarl, lwf .*images"):
        acil.bench.run(dataset=f"features:{features[0]}", method="icarl,lwf", phases=5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Pictures of four classes that their colours tell apart."""
    root = tmp_path_factory.mktemp("folder")
    draw(root / "train", 6)
    draw(root / "test", 4, seed=1)
    return root


def pretrained(folder, **flags):
    common = {"phases": 2, "seeds": 0, "base": 0, "recipe": "pretrained", "expansion_size": 64}
    return acil.bench.run(
        **{"dataset": f"imagefolder:{folder}", "set": {"data.size": 8}, **common, **flags}
    )


@pytest.fixture(scope="module")
def onnx_file(tmp_path_factory):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    from acil.encoders.images.networks import open_network

    path = tmp_path_factory.mktemp("onnx") / "small.onnx"
    path.write_bytes(open_network("module:support.pictures.Pooled").to_onnx())
    return path


def fake_timm():
    """A stand-in for timm with one model."""
    timm = types.ModuleType("timm")
    data = {"input_size": (3, 8, 8), "mean": (0.5,) * 3, "std": (0.25,) * 3, "crop_pct": 1.0}
    timm.create_model = lambda name, pretrained, num_classes: Pooled()
    timm.data = types.SimpleNamespace(resolve_model_data_config=lambda module: data)
    return timm


@pytest.mark.parametrize("spec", ["support.pictures:Pooled", "timm:small", "onnx:small.onnx"])
def test_network_by_name_learns_from_zero_without_training(folder, request, monkeypatch, spec):
    monkeypatch.setitem(sys.modules, "timm", fake_timm())
    if spec.startswith("onnx"):
        monkeypatch.chdir(request.getfixturevalue("onnx_file").parent)
    found = pretrained(folder, backbone=spec, method="acil,ncm")
    summaries = [record for record in found if record["kind"] == "summary"]
    assert [record["method"] for record in summaries] == ["acil", "ncm"]
    assert [r["classes_seen"] for r in found if r["kind"] == "phase"] == [2, 4, 2, 4]
    assert min(record["last_accuracy"] for record in summaries) > 90
    name, _, fingerprint = summaries[0]["settings"]["backbone"].partition("@")
    assert (name, len(fingerprint)) == (spec, 12)
    assert summaries[0]["settings"]["gamma"] == "auto"


def test_onnx_gives_the_accuracy_of_the_network_it_was_exported_from(folder, onnx_file):
    first, second = (
        [record["accuracy"] for record in pretrained(folder, backbone=spec) if record["kind"] == "phase"]
        for spec in ("support.pictures:Pooled", f"onnx:{onnx_file}")
    )
    assert first == second


def test_methods_that_train_go_on_from_a_network_of_torch_only(folder, onnx_file):
    changes = {"settings.increment.epochs": 1, "recipe.training.epochs": 1, "data.size": 8}
    common = {"method": "finetune", "set": changes}
    found = pretrained(folder, backbone="support.pictures:Pooled", **common)
    assert [record["method"] for record in found if record["kind"] == "summary"] == ["finetune"]
    with pytest.raises(InputError, match=r"finetune .*trained"):
        pretrained(folder, backbone=f"onnx:{onnx_file}", **common)


def test_image_size_that_does_not_fit_a_named_network_says_what_to_set(folder):
    with pytest.raises(InputError, match=r"--set data\.size=8\..*recipe\.backbone_options\.size=256"):
        acil.bench.run(dataset=f"imagefolder:{folder}", backbone="support.pictures:Pooled", phases=2)


@pytest.mark.parametrize(("name", "n_classes"), [("cub", 200), ("imagenet-r", 200), ("cars", 196)])
def test_data_sets_of_the_pretrained_literature_start_from_zero(tmp_path, monkeypatch, name, n_classes):
    Image.new("RGB", (8, 8)).save(tmp_path / "one.png")
    for split in ("train", "test"):
        for label in range(n_classes):
            (tmp_path / split / f"{label:03}").mkdir(parents=True)
            (tmp_path / split / f"{label:03}" / "one.png").symlink_to(tmp_path / "one.png")
    result = command(
        *("--dataset", f"{name}:{tmp_path}", "--backbone", "support.pictures:Pooled", "--phases", "10"),
        *("--seeds", "0", "--set", "data.size=8", "--dry-run"),
    )
    assert f"{n_classes} classes, {n_classes} training" in result.stdout
    assert "base of 0 classes" in result.stdout
    assert "recipe pretrained" in result.stdout
    small = command(
        "--dataset", f"{name}:{tmp_path}", "--backbone", "support.pictures:Pooled", "--dry-run"
    )
    assert "takes images of shape (3, 8, 8)" in small.stderr
    assert "attribute `preprocessing`" in small.stderr
    for split in ("train", "test"):
        shutil.rmtree(tmp_path / split / "000")
    refused = command("--dataset", f"{name}:{tmp_path}", "--dry-run")
    assert f"has {n_classes - 1} classes, but this data set has {n_classes}" in refused.stderr


OWN = """

from torch import nn
from acil.bench.methods.class_means import NCM
from acil.encoders.images import Preprocessing

class Mine(NCM):
    pass

class Average(nn.Module):
    preprocessing = Preprocessing((0.5,) * 3, (0.25,) * 3, 8)

    def forward(self, x):
        return x.mean(dim=(2, 3))
"""


def test_classes_in_the_current_folder_are_found(folder, tmp_path):
    (tmp_path / "mine.py").write_text(OWN)
    arguments = ["--dataset", f"imagefolder:{folder}", "--method", "mine:Mine", "--phases", "2"]
    arguments += ["--backbone", "mine:Average", "--recipe", "pretrained", "--set", "data.size=8"]
    # As the installed command, which does not look into the current folder by itself.
    done = finished("bench", "run", *arguments, "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "mine:Mine, seed 0" in done.stdout


def test_report_names_the_network_and_says_that_it_started_from_zero(folder, tmp_path):
    pretrained(folder, backbone="support.pictures:Pooled", out=tmp_path / "run")
    page = write_report(tmp_path / "run", plots=False).files[-1].read_text()
    assert "recipe pretrained, 4 classes from zero" in page
    assert "--base 0 --backbone support.pictures:Pooled --expansion-size 64 --set data.size=8\n" in page


def test_python_gives_the_records_of_the_command(features, tmp_path):
    path, _ = features
    result = command(
        *("--dataset", f"features:{path}", "--method", "ncm,lda", "--phases", "2,5", "--seeds", "0,1"),
        *("--set", "joint_check=false", "--out", tmp_path / "a"),
    )
    assert result.exit_code == 0
    found = acil.bench.run(
        tmp_path / "b",
        dataset=f"features:{path}",
        method=["ncm", "lda"],
        phases=[2, 5],
        seeds=[0, 1],
        set={"joint_check": False},
    )
    assert timeless(tmp_path / "b") == timeless(tmp_path / "a")
    assert found == records(tmp_path / "b")
