"""A run killed within a phase goes on to the bits of one that was left alone."""

import itertools

import pytest
import torch

from acil.bench.config import make_config
from acil.bench.job import StateFile
from acil.bench.methods import resolve
from acil.bench.records import Records
from acil.bench.runner import run
from acil.bench.training.checkpoint import Checkpoint
from acil.bench.training.settings import Training
from support.replay_problem import REPLAY_METHODS, learnt, make_context, make_phases
from support.small_training import same_state

TRAINING = Training(epochs=3, batch_size=8, learning_rate=0.05, schedule="cosine")


class Stop(Exception):
    pass


@pytest.fixture
def often(monkeypatch):
    """Write a checkpoint after every second step and report after every step."""
    steps = itertools.count(1)
    monkeypatch.setattr(Checkpoint, "due", lambda self: next(steps) % 2 == 0)
    monkeypatch.setattr("acil.bench.training.loop.REPORT_SECONDS", 0.0)


def stop_in_epoch(epoch):
    """Return a progress callback that ends the training of an increment in an epoch."""

    def stop(event):
        if event.epoch == epoch:
            raise Stop

    return stop


@pytest.mark.parametrize("name", REPLAY_METHODS)
def test_phase_goes_on_from_where_it_was_killed(name, tmp_path, often):
    phases = make_phases((2, 2))
    whole = learnt(name, phases, make_context(training=TRAINING))
    before = learnt(name, phases[:1], make_context(tmp_path, training=TRAINING))
    file = StateFile(tmp_path / "state.safetensors")
    file.save(0, before.state_dict())
    _, state = file.load()
    killed = resolve(name)(make_context(tmp_path, training=TRAINING, progress=stop_in_epoch(3)))
    killed.load_state_dict(state)
    with pytest.raises(Stop):
        killed.learn(phases[1])
    (left,) = tmp_path.glob(f"{name}-*-phase-1/training.safetensors")

    events = []
    resumed = resolve(name)(make_context(tmp_path, training=TRAINING, progress=events.append))
    resumed.load_state_dict(state)
    assert torch.equal(resumed.predict(phases[1].images), before.predict(phases[1].images))
    resumed.learn(phases[1])
    assert events[0].epoch >= 2
    assert same_state(resumed, whole)
    assert resumed.memory() == whole.memory()
    assert torch.equal(resumed.predict(phases[1].images), whole.predict(phases[1].images))
    assert not left.parent.exists()
    again = resolve(name)(make_context(training=TRAINING))
    again.load_state_dict(resumed.state_dict())
    features = torch.rand(4, whole.network.backbone.num_features)
    assert torch.equal(again.scores(features), resumed.scores(features))


def test_checkpoints_of_other_groupings_and_settings_do_not_meet(tmp_path, often):
    folders = set()
    for sizes, settings in [((2, 2), {}), ((2, 1), {}), ((2, 2), {"lwf_distillation": 2.0})]:
        phases = make_phases(sizes)
        method = learnt("lwf", phases[:1], make_context(tmp_path, settings=settings))
        method.context = make_context(tmp_path, settings=settings, progress=stop_in_epoch(2))
        with pytest.raises(Stop):
            method.learn(phases[1])
        folders |= {path.parent.name for path in tmp_path.glob("*-phase-*/training.safetensors")}
    assert len(folders) == 3


def test_checkpoint_after_another_network_is_left_aside(tmp_path, often, caplog):
    # On a GPU a phase that is learnt again ends with other last bits: what follows starts anew.
    phases = make_phases((2, 2))
    method = learnt("finetune", phases[:1], make_context(tmp_path))
    method.context = make_context(tmp_path, progress=stop_in_epoch(2))
    with pytest.raises(Stop):
        method.learn(phases[1])
    with torch.no_grad():
        method.network.classifier.bias[0] += 1e-3
    method.context = make_context(tmp_path)
    method.learn(phases[1])
    assert "starts anew" in caplog.text
    assert method.n_seen == 4


def test_method_that_diverges_is_recorded_and_does_not_stop_the_others(tmp_path):
    values = {"seeds": "0", "phases": "2", "classes": "6", "recipe.training.epochs": "1"}
    values |= {"settings.increment.epochs": "2", "settings.increment.learning_rate": "1e30"}
    with pytest.raises(ArithmeticError, match="diverged"):
        run(make_config({**values, "methods": "finetune,joint"}), tmp_path / "all")
    run(make_config({**values, "methods": "finetune,acil"}), tmp_path / "run")
    found = Records(tmp_path / "run" / "records.jsonl").read()
    kinds = [(record["kind"], record.get("method")) for record in found]
    assert ("failure", "finetune") in kinds
    assert ("summary", "acil") in kinds
