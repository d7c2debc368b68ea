"""BiC: what is held out, what the correction does, and which teacher the next phase has."""

import pytest
import torch

from acil.bench.methods import bic
from acil.bench.methods.base_network import classifier_scores, network_features
from acil.bench.methods.bic import BiasCorrection, hold_out
from acil.errors import InputError
from support.replay_problem import learnt, make_context, make_phases
from support.small_training import CPU, batch

N_OLD = 3


def scores_and_labels(n=200):
    """Scores that separate four classes, three of them old, about as well as a network does."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(n) % 4
    scores = torch.randn(n, 4, generator=generator)
    scores[torch.arange(n), labels] += 2.0
    return scores, labels


def fitted(scores, labels, **settings):
    given = {"increment.batch_size": 256, "bic_correction_epochs": 200, **settings}
    method = learnt("bic", make_phases((N_OLD,)), **given)
    return method.fitted_correction(scores, labels)


def test_scores_shifted_up_are_shifted_back():
    scores, labels = scores_and_labels()
    scores[:, N_OLD:] += 3.0
    found = fitted(scores, labels)
    # A smaller α takes some of the shift away as well.
    assert found.beta.item() < -0.3
    assert found.alpha.item() < 1.0
    plain = (scores.argmax(1) == labels).float().mean()
    assert (found(scores).argmax(1) == labels).float().mean() > plain + 0.1
    # β is held back by its decay.
    assert abs(fitted(scores, labels, bic_beta_decay=5.0).beta.item()) < 0.2


def test_scores_stretched_are_shrunk():
    scores, labels = scores_and_labels()
    # Larger where the class is present and where it is not: a shift alone cannot mend it.
    scores[:, N_OLD:] *= 3.0
    assert 0.0 < fitted(scores, labels).alpha.item() < 0.8


def test_balanced_scores_are_nearly_left_alone():
    scores, labels = scores_and_labels()
    assert abs(fitted(2 * scores, labels).beta.item()) < 0.2


def test_hold_out_takes_as_many_of_every_class():
    labels = torch.tensor([0] * 20 + [1] * 20 + [2] * 300)
    held = hold_out(labels, 2, 2, torch.Generator().manual_seed(0))
    assert torch.bincount(labels[held]).tolist() == [2, 2, 2]
    again = hold_out(labels, 2, 2, torch.Generator().manual_seed(0))
    other = hold_out(labels, 2, 2, torch.Generator().manual_seed(1))
    assert torch.equal(held, again)
    # Exemplars are held out by their rank, whatever is drawn.
    assert torch.nonzero(held).flatten()[:4].tolist() == [0, 1, 20, 21]
    assert not torch.equal(held, other)
    # Never all of a class
    assert hold_out(torch.tensor([0, 0, 1, 1]), 1, 1, torch.Generator()).sum() == 2


@pytest.mark.parametrize(("rule", "expected"), [("10 per class", [3, 3]), ("30 in total", [4, 2])])
def test_what_is_held_out_has_never_been_trained_on(rule, expected, monkeypatch):
    trained, held = set(), []
    fit, features = bic.BiC.fit, bic.network_features

    def collect(self, network, data, phase, objective):
        trained.update(image.numpy().tobytes() for image in data[0])
        return fit(self, network, data, phase, objective)

    def choosing(backbone, images, device):
        assert not trained & {image.numpy().tobytes() for image in images}
        held.append(len(images))
        return features(backbone, images, device)

    monkeypatch.setattr(bic.BiC, "fit", collect)
    monkeypatch.setattr(bic, "network_features", choosing)
    method = bic.BiC(make_context(settings={"memory_rule": rule, "bic_held_out": 0.3}))
    for phase in make_phases((2, 2, 2)):
        method.learn(phase)
        # Herding has chosen the others.
        assert len(method.exemplars) == method.n_seen * method.exemplars.rule.quota(method.n_seen)
    assert held == [4 * expected[0], 6 * expected[1]]


def test_one_exemplar_per_class_is_refused_and_changes_nothing():
    phases = make_phases()
    method = bic.BiC(make_context(settings={"memory_rule": "1 per class"}))
    method.learn(phases[0])
    before = method.predict(phases[0].images)
    with pytest.raises(InputError, match="memory_rule"):
        method.learn(phases[1])
    assert method.n_seen == 3
    assert torch.equal(method.predict(phases[0].images), before)


def test_next_teacher_is_corrected_for_the_newest_classes_only(fits):
    phases = make_phases((3, 2, 1))
    method = learnt("bic", phases[:2])
    assert isinstance(method.correction, BiasCorrection)
    with torch.no_grad():
        method.correction.alpha.fill_(0.5)
        method.correction.beta.fill_(-1.0)
    network = method.network
    x = batch(4)[0]
    method.learn(phases[2])
    with torch.no_grad():
        raw, taught = network(x), fits[-1][2].teacher(x)
    torch.testing.assert_close(taught[:, :3], raw[:, :3])
    torch.testing.assert_close(taught[:, 3:], 0.5 * raw[:, 3:] - 1.0)
    # One pair counts: the group before the newest is corrected no more.
    assert method.correction.n_old == 5


def test_predictions_use_the_correction():
    phases = make_phases((3, 2))
    method = learnt("bic", phases)
    features = network_features(method.network.backbone, phases[1].images, CPU)
    raw = classifier_scores(method.network.classifier, features, CPU)
    with torch.no_grad():
        method.correction.beta.fill_(-1000.0)
    assert set(method.predict(phases[1].images).tolist()) <= {0, 1, 2}
    assert torch.equal(method.scores(features)[:, :3], raw[:, :3])
