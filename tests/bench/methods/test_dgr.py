"""Deep generative replay: what is drawn, how it is labelled, what is kept."""

import pytest
import torch

from acil.bench.methods import dgr
from acil.bench.methods.dgr import EvidenceBound, Generator, Replaying
from acil.bench.training.settings import Training
from acil.encoders.images.backbones import build
from acil.encoders.images.decode import to_pixels
from support.replay_problem import learnt, make_phases
from support.small_training import batch, fit, images_of, make_network

PREPROCESSING = build("smallcnn").preprocessing


def test_drawn_images_get_the_old_networks_soft_labels():
    student, teacher = make_network(5, 0), make_network(3, 1)
    x, _, indices = batch(6)
    y = torch.tensor([0, 3, 1, 4, 2, 3])
    loss, scores = Replaying(teacher, 3, 0.4)(student, x, y, indices)
    logs, soft = scores.log_softmax(1), teacher(x).softmax(1)
    new = -(logs[1, 3] + logs[3, 4] + logs[5, 3]) / 3
    old = -sum((soft[i] * logs[i, :3]).sum() for i in (0, 2, 4)) / 3
    assert loss.item() == pytest.approx((0.4 * new + 0.6 * old).item(), rel=1e-5)
    # The label that an image was drawn for is not used.
    others = Replaying(teacher, 3, 0.4)(student, x, torch.tensor([2, 3, 0, 4, 1, 3]), indices)
    assert others[0].item() == pytest.approx(loss.item(), rel=1e-6)


def test_samples_of_the_generator_enter_training(monkeypatch):
    phases = make_phases((3, 2))
    method = learnt("dgr", phases[:1], dgr_drawn=5)
    drawn, labels = method.draw(phases[1])
    assert drawn.dtype == torch.uint8
    assert torch.bincount(labels).tolist() == [5, 5, 5]
    trained = []
    fit = dgr.DGR.fit

    def collect(self, network, data, phase, objective):
        trained.append((data, objective))
        assert objective.teacher is self.network
        return fit(self, network, data, phase, objective)

    monkeypatch.setattr(dgr.DGR, "fit", collect)
    started, old_generator = [], method.generator_network
    collect_further = lambda self, *given, **_: started.append(given)  # noqa: E731
    monkeypatch.setattr(dgr.DGR, "train_further", collect_further)
    method.learn(phases[1])
    (((images, found), objective),) = trained
    assert torch.equal(images[-15:], drawn)
    assert torch.equal(images[:-15], phases[1].images.pixels())
    assert torch.bincount(found).tolist() == [5, 5, 5, 16, 16]
    assert (objective.n_old, objective.share) == (3, 0.4)
    # Then the generator of before goes on with the same images, and learns where codes of classes lie.
    ((generator, (seen, _), *_),) = started
    assert torch.equal(seen, images)
    assert torch.equal(generator.start.weight, old_generator.start.weight)
    assert (generator.spread != 1).any(1).tolist() == [True] * 5 + [False]


@pytest.fixture(scope="module")
def trained_generator():
    pixels, labels = images_of(range(4), per_class=40)
    made = Generator(1, 8, 6, latent=8, seed=0)
    plan = Training(epochs=60, batch_size=32, learning_rate=0.05, schedule="cosine")
    fit(made, pixels, labels, plan, preprocessing=PREPROCESSING, objective=EvidenceBound())
    made.measure_codes(pixels, labels, PREPROCESSING)
    return made, pixels, labels


def test_generator_draws_images_of_the_class_asked_for(trained_generator):
    made, pixels, labels = trained_generator
    wanted = torch.arange(4).repeat_interleave(10)
    drawn = to_pixels(made.draw(wanted, torch.Generator().manual_seed(1)), PREPROCESSING).float()
    means = torch.stack([pixels[labels == label].float().mean(0) for label in range(4)])
    distances = (drawn[:, None] - means[None]).flatten(2).norm(dim=2)
    assert float((distances.argmin(1) == wanted).float().mean()) > 0.9
    # Not the same image again and again.
    assert len(drawn.flatten(1).unique(dim=0)) == 40


def test_generator_depends_on_its_seed_alone():
    first, second = (Generator(3, 32, 4, latent=5, seed=1) for _ in range(2))
    state = first.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in second.state_dict().items())
    assert first.inner == (128, 4, 4)
    labels = torch.tensor([0, 3])
    drawn = [g.draw(labels, torch.Generator().manual_seed(0)) for g in (first, second)]
    assert drawn[0].shape == (2, 3, 32, 32)
    assert torch.equal(drawn[0], drawn[1])
    assert not {"noise", "steps"} & state.keys()


def test_evidence_bound_is_the_one_computed_by_hand():
    x = torch.zeros(1, 1, 2, 2)
    # Squared error 4; ½ (1 + 3 − log 3 − 1) for each of two codes, times 2 · 0.1, for each of 4 pixels.
    logs = torch.full((1, 2), 3.0).log()
    loss = EvidenceBound()(lambda *_: (x + 2, torch.ones(1, 2), logs), x, None, None)
    assert loss.item() == pytest.approx(4 + 0.2 * (3 - float(logs[0, 0])) / 4)
