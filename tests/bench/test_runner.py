"""The runner on small problems: what it records, how it goes on, what it refuses."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from acil.bench.config import make_config
from acil.bench.estimate import plan_of
from acil.bench.methods import MemoryUse
from acil.bench.report import write_report
from acil.bench.runner import run
from acil.errors import InputError
from support.running import command, records, write_features
from support.running import without_times as timeless


def settings(embeddings, **changes):
    values = {"dataset": f"features:{embeddings}", "seeds": "0", "expansion_size": 64, "gamma": 1.0}
    return make_config(values | changes)


def test_run_records_every_phase_and_a_summary(embeddings, tmp_path):
    run(settings(embeddings, phases=3), tmp_path / "run")
    phases, (summary,) = records(tmp_path / "run", "phase"), records(tmp_path / "run", "summary")
    assert [record["classes_seen"] for record in phases] == [6, 8, 10, 12]
    assert summary["average_accuracy"] == pytest.approx(
        np.mean([record["accuracy"] for record in phases])
    )
    assert summary["last_accuracy"] == phases[-1]["accuracy"] > 80
    assert summary["forgetting"] == pytest.approx(
        phases[0]["base_accuracy"] - phases[-1]["base_accuracy"]
    )
    assert summary["joint_difference"] <= 1e-9
    assert phases[-1]["memory"]["samples"] == 0
    # One triangle, the moment and the total
    assert phases[-1]["memory"]["statistics"] == (64 * 65 // 2 + 64 * 12 + 64) * 8


def test_command_says_what_the_symbols_of_its_table_mean(embeddings, tmp_path):
    data = ("--dataset", f"features:{embeddings}", "--seeds", 0, "--phases", 2, "--expansion-size", 64)
    told = command(*data, "--out", tmp_path / "run").stdout
    for symbol in ("Ā", "A_K", "F"):
        assert f" {symbol} (%) " in told
        assert f"{symbol}: " in told


def test_one_pass_gives_the_same_records_as_one_run_for_each_number_of_phases(embeddings, tmp_path):
    run(settings(embeddings, phases="1,2,3,6"), tmp_path / "together")
    for k in (1, 2, 3, 6):
        run(settings(embeddings, phases=k), tmp_path / str(k))
        together = [r for r in timeless(records(tmp_path / "together")) if r["phases"] == k]
        alone = timeless(records(tmp_path / str(k)))
        for left, right in zip(together, alone, strict=True):
            left.pop("joint_difference", None), right.pop("joint_difference", None)
            left.pop("condition", None), right.pop("condition", None)
            assert left == right


@pytest.mark.parametrize(
    ("changes", "seen"),
    [
        ({"phases": 4, "base": 5}, [5, 7, 9, 11, 12]),
        ({"phases": 4, "base": 0}, [3, 6, 9, 12]),
        ({"phases": 2, "classes": 6, "order": "seed1993"}, [3, 5, 6]),
    ],
    ids=["do not divide", "no base", "first classes only"],
)
def test_all_classes_that_were_asked_for_are_learnt(embeddings, tmp_path, changes, seen):
    run(settings(embeddings, **changes), tmp_path / "run")
    assert [r["classes_seen"] for r in records(tmp_path / "run", "phase")] == seen


def test_more_phases_than_classes_left_is_refused_before_anything_is_written(embeddings, tmp_path):
    with pytest.raises(InputError, match="at most 6"):
        run(settings(embeddings, phases=7), tmp_path / "run")
    assert not (tmp_path / "run" / "records.jsonl").exists()


def test_images_without_a_base_and_a_network_are_refused_before_anything_is_written(tmp_path):
    config = make_config({"dataset": "digits", "base": 0, "phases": 2})
    with pytest.raises(InputError, match="base phase"):
        plan_of(config)[0]
    with pytest.raises(InputError, match="base phase"):
        run(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"settings.gama": 3}, "No method has a setting 'gama'. Did you mean gamma"),
        ({"methods": "ncm,icarl-bce", "settings.memory_rul": 3}, "Did you mean memory_rule"),
        ({"gamma": "x"}, "'gamma' parameter"),
        ({"methods": "ds-al", "expansion_size": "x"}, "'expansion_size' parameter"),
        ({"solver": "cg"}, "'solver' parameter"),
        ({"methods": "acil,lda", "settings.lda_shrinkage": -1}, "lda_shrinkage must be from 0 to 1"),
        ({"methods": "bic", "settings.bic_correction_rate": -1}, "correction_rate must be positive"),
        ({"methods": "bic", "settings.bic_correction_epochs": -3}, "correction_epochs must be at least"),
        ({"methods": "bic", "settings.bic_correction_milestones": "5,3"}, "must be in rising order"),
        ({"methods": "podnet", "settings.podnet_balanced_rate": -1}, "balanced_rate must be positive"),
        ({"methods": "lucir", "settings.lucir_balanced_rate": -1}, "balanced_rate must be positive"),
        ({"methods": "dgr", "settings.dgr_generator_rate": -1}, "generator_rate must be positive"),
    ],
)
def test_settings_that_are_none_are_refused_before_anything_is_written(
    embeddings, tmp_path, changes, words
):
    with pytest.raises(InputError, match=words):
        plan_of(settings(embeddings, phases=2, **changes))[0]
    with pytest.raises(InputError, match=words):
        run(settings(embeddings, phases=2, **changes), tmp_path / "run")
    assert not (tmp_path / "run" / "records.jsonl").exists()


def test_misspelt_training_of_increments_is_refused_before_anything_is_written(tmp_path):
    values = {"dataset": "digits", "methods": "acil,podnet", "settings.increment.epoch": 3, "phases": 2}
    with pytest.raises(InputError, match="'epoch'"):
        run(make_config(values), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "changes", [{"solver": "recursive"}, {"dtype": "mixed", "gamma": 100}, {"expansion_size": "none"}]
)
def test_settings_reach_the_head_and_the_records(embeddings, tmp_path, changes):
    run(settings(embeddings, phases=2, **changes), tmp_path / "run")
    (summary,) = records(tmp_path / "run", "summary")
    for name, value in changes.items():
        assert summary["settings"][name] == (None if value == "none" else value)


def test_ablation_has_the_variants_of_the_paper(embeddings, tmp_path):
    values = {"dataset": f"features:{embeddings}", "seeds": "0", "suite": "ablation", "phases": 2}
    run(make_config(values), tmp_path / "run")
    found = [
        (r["settings"]["expansion_size"], r["settings"]["gamma"])
        for r in records(tmp_path / "run", "summary")
    ]
    assert found[0] == (None, 0.1)
    assert [gamma for _, gamma in found[1:]] == [0.1, 0.01, 0.001]
    # γ = 0 with fewer samples than dimensions cannot be solved: that is recorded, and reported.
    (failure,) = records(tmp_path / "run", "failure")
    assert failure["settings"]["gamma"] == 0
    assert "not positive definite" in failure["error"]
    text = write_report([tmp_path / "run"], tmp_path / "report").markdown
    assert text.count("**Ablation of") == text.count("| not solvable |") == 1
    assert text.count(failure["error"]) == 1
    assert "Unfinished" not in text


def test_what_the_papers_table_does_not_have_is_refused(tmp_path):
    write_features(tmp_path / "f.npz", classes=100, each=(1, 1))
    given = {"suite": "table1", "dataset": f"features:{tmp_path / 'f.npz'}", "methods": "slda,ncm"}
    assert "slda, seed 0, K = 50" not in plan_of(make_config(given))[0]
    with pytest.raises(InputError, match="slda, ncm with K = 50"):
        plan_of(make_config({**given, "phases": "50"}))[0]


def test_existing_run_is_not_overwritten_unless_asked(embeddings, tmp_path):
    config = settings(embeddings, phases=2)
    run(config, tmp_path / "run")
    before = (tmp_path / "run" / "records.jsonl").read_bytes()
    with pytest.raises(InputError, match="--resume"):
        run(config, tmp_path / "run")
    assert (tmp_path / "run" / "records.jsonl").read_bytes() == before
    run(config, tmp_path / "run", force=True)
    assert len(records(tmp_path / "run", "summary")) == 1


def test_resuming_may_add_seeds_but_not_change_the_problem(embeddings, tmp_path):
    folder, config = tmp_path / "run", settings(embeddings, phases=2)
    folder.mkdir()  # a run that has barely started
    run(config, folder, resume=True)
    before = timeless(records(folder))
    run(config, folder, resume=True)
    assert timeless(records(folder)) == before
    run(settings(embeddings, phases=2, seeds="0,1"), folder, resume=True)
    assert [r["seed"] for r in records(folder, "summary")] == [0, 1]
    # As the report names them: what the data set chose before
    named = {"phases": 2, "recipe": "features", "base": 6}
    run(settings(embeddings, seeds="0,2", **named), folder, resume=True)
    assert [r["seed"] for r in records(folder, "summary")] == [0, 1, 2]
    for other in ({"base": 5}, {"recipe": "digits"}):
        with pytest.raises(InputError, match=f"started with {next(iter(other))}"):
            run(settings(embeddings, **{**named, **other}), folder, resume=True)
        with pytest.raises(InputError, match="started with"):
            plan_of(settings(embeddings, **{**named, **other}), folder)[0]
    with pytest.raises(InputError, match="order"):
        run(settings(embeddings, phases=2, order="seed1993"), folder, resume=True)


def test_resuming_with_another_file_of_features_is_refused_however_it_is_given(embeddings, tmp_path):
    write_features(tmp_path / "other.npz", noise=2.0)
    given = {"dataset": "features", "method": "ncm", "phases": 2}
    run(settings(embeddings, root=embeddings, **given), tmp_path / "run")
    with pytest.raises(InputError, match="dataset"):
        run(settings(embeddings, root=tmp_path / "other.npz", **given), tmp_path / "run", resume=True)


class Stop(BaseException):
    pass


@pytest.mark.parametrize("moment", [0, 1, 3, 6])
@pytest.mark.parametrize("every_seconds", [0.0, 60.0])
def test_interrupted_run_resumes_to_the_same_records(
    embeddings, tmp_path, monkeypatch, moment, every_seconds
):
    monkeypatch.setattr("acil.bench.job.STATE_SECONDS", every_seconds)
    config = settings(embeddings, phases="2,6", seeds="0,1")
    run(config, tmp_path / "whole")

    def stop(event, seen=[]):  # noqa: B006 (counts its calls)
        seen.append(event)
        if len(seen) == moment + 1:
            raise Stop

    with pytest.raises(Stop):
        run(config, tmp_path / "run", progress=stop)
    run(config, tmp_path / "run", resume=True)
    assert timeless(records(tmp_path / "run")) == timeless(records(tmp_path / "whole"))
    for seed in (0, 1):
        found = [r for r in records(tmp_path / "run", "summary") if r["seed"] == seed]
        # One pass served both K.
        assert found[0]["seconds"] == pytest.approx(found[1]["seconds"])


# Of the coarser K, and of the phase after which the state was saved
@pytest.mark.parametrize("damaged", [1, 3])
def test_phase_whose_damaged_line_was_removed_is_learnt_again(
    embeddings, tmp_path, monkeypatch, damaged
):
    monkeypatch.setattr("acil.bench.job.STATE_SECONDS", 0.0)
    config = settings(embeddings, phases="2,6")
    run(config, tmp_path / "whole")

    def stop(event):
        if event.phase == 2:
            raise Stop

    with pytest.raises(Stop):
        run(config, tmp_path / "run", progress=stop)
    file = tmp_path / "run" / "records.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    recorded = [i for i, line in enumerate(lines) if '"kind": "phase"' in line]
    assert len(recorded) == 4
    del lines[recorded[damaged]]
    file.write_text("".join(lines))
    run(config, tmp_path / "run", resume=True)
    found, expected = (timeless(records(tmp_path / name)) for name in ("run", "whole"))
    assert sorted(found, key=str) == sorted(expected, key=str)


class Majority:
    """Predict the most frequent label seen last: a user's own method in a few lines."""

    grouping_free = False

    def __init__(self, context):
        self.label = 0

    def learn(self, phase):
        self.label = int(torch.mode(phase.labels).values)

    def predict(self, images):
        return torch.full((len(images),), self.label)

    def memory(self):
        return MemoryUse(weights=8)

    def state_dict(self):
        return {"label": self.label}

    def load_state_dict(self, state):
        self.label = state["label"]


class Keeper(Majority):
    """A method that keeps samples, as its settings say."""

    @classmethod
    def recorded_settings(cls, settings):
        return {"memory_rule": settings.get("memory_rule", "20 per class")}

    def __init__(self, context):
        super().__init__(context)
        self.kept = int(self.recorded_settings(context.settings)["memory_rule"].split()[0])

    def memory(self):
        return MemoryUse(samples=self.kept * 100, weights=8)


@pytest.fixture
def keeper(monkeypatch):
    """The path of a user's own method."""
    own = SimpleNamespace(Majority=Majority, Keeper=Keeper)
    monkeypatch.setitem(sys.modules, "own_methods", own)
    return "own_methods:Keeper"


def test_own_method_by_its_path(embeddings, tmp_path, keeper):
    methods = "own_methods:Majority,acil"
    run(settings(embeddings, methods=methods, phases="2,3"), tmp_path / "run")
    found = [(r["method"], r["phases"]) for r in records(tmp_path / "run", "summary")]
    assert sorted(found) == sorted((method, k) for method in methods.split(",") for k in (2, 3))


def test_settings_that_a_method_has_of_its_own_are_recorded(embeddings, tmp_path, keeper):
    run(settings(embeddings, methods=f"{keeper},acil", phases=2, suite="compare"), tmp_path / "run")
    rules = {r["method"]: r["settings"].get("memory_rule") for r in records(tmp_path / "run", "summary")}
    assert rules == {keeper: "20 per class", "acil": None}


def test_memory_suite_puts_samples_and_statistics_on_one_plot(embeddings, tmp_path, keeper):
    changes = {"settings.widths": "[16, 32]", "settings.budgets": "[5, 10]"}
    config = settings(embeddings, suite="memory", methods=f"{keeper},acil", phases=2, **changes)
    run(config, tmp_path / "run")
    kept = {
        (r["method"], r["settings"].get("memory_rule") or r["settings"]["expansion_size"]): r["memory"]
        for r in records(tmp_path / "run", "summary")
    }
    assert [memory["samples"] for memory in kept.values()] == [500, 1000, 0, 0]
    assert kept["acil", 32]["statistics"] > kept["acil", 16]["statistics"] > 0
    report = write_report([tmp_path / "run"])
    assert [path.name.partition("-")[0] for path in report.plots] == ["memory"]
    assert "own_methods:Keeper (memory_rule = 5 per class)" in (report.files[0].read_text())


def test_dry_run_says_what_would_be_done(embeddings):
    text = plan_of(settings(embeddings, phases="2,3", seeds="0,1"))[0]
    assert "12 classes" in text
    # 6 + 3 + 3 and 6 + 2 + 2 + 2 classes end at different places, so each K is a job of its own
    assert text.count("acil, seed") == 4


def test_digits_train_a_network_once_for_all_numbers_of_phases(tmp_path):
    config = make_config({"seeds": "0", "phases": "1,5", "recipe.training.epochs": "2"})
    run(config, tmp_path / "run")
    assert len(list((tmp_path / "run" / "checkpoint").glob("base-*/backbone.safetensors"))) == 1
    by_k = {
        k: {
            r["classes_seen"]: r["accuracy"]
            for r in records(tmp_path / "run", "phase")
            if r["phases"] == k
        }
        for k in (1, 5)
    }
    assert by_k[1] == {seen: by_k[5][seen] for seen in (5, 10)}
    assert all(r["joint_difference"] <= 1e-9 for r in records(tmp_path / "run", "summary"))


def test_backbone_trained_on_another_order_is_refused(tmp_path):
    values = {"seeds": "0", "phases": "1", "recipe.training.epochs": "1"}
    run(make_config(values), tmp_path / "run")
    (backbone,) = (tmp_path / "run" / "checkpoint").glob("base-*/backbone.safetensors")
    again = make_config({**values, "backbone": str(backbone)})
    run(again, tmp_path / "again")
    first, second = (records(tmp_path / name, "phase") for name in ("run", "again"))
    assert [r["accuracy"] for r in first] == [r["accuracy"] for r in second]
    with pytest.raises(InputError, match="order"):
        run(make_config({**values, "backbone": str(backbone), "order": "seed1993"}), tmp_path / "other")
    with pytest.raises(InputError, match="--base"):
        run(make_config({**values, "backbone": str(backbone), "base": 3}), tmp_path / "smaller")
