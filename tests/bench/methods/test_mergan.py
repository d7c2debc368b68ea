"""Memory replay GANs: what is drawn and with which labels, and what holds the generator."""

import copy

import pytest
import torch
from torch.nn import functional

from acil.bench.methods import mergan
from acil.bench.methods.mergan import GAN, MeRGAN, alignment_loss, critic_loss, generator_loss
from acil.bench.training.objectives import CrossEntropy
from acil.encoders.images.decode import to_pixels
from support.replay_problem import learnt, make_context, make_phases
from support.small_training import images_of

FORMS = pytest.mark.parametrize("form", ["replay", "alignment"])


def gan(seed=0, n_classes=4):
    return GAN(1, 8, n_classes, latent=6, seed=seed)


def noise(n, seed=0):
    return torch.randn(n, 6, generator=torch.Generator().manual_seed(seed))


def test_replayed_images_have_the_labels_that_they_were_asked_for(monkeypatch):
    phases = make_phases((3, 2))
    method = learnt("mergan", phases[:1])
    trained = []

    def collect(self, network, data, phase, objective):
        trained.append((data, objective))
        return network

    monkeypatch.setattr(MeRGAN, "fit", collect)
    old = method.generator_network
    method.learn(phases[1])
    (((images, labels), objective),) = trained
    assert torch.bincount(labels).tolist() == [8, 8, 8, 16, 16], "equally many of each old class"
    assert torch.equal(images[:32], phases[1].images.pixels())
    assert isinstance(objective, CrossEntropy)
    again = old.draw(labels[32:], method.generator("drawn images", phases[1]))
    assert torch.equal(images[32:], to_pixels(again, method.network.backbone.preprocessing))
    assert labels[32:].tolist() == [0] * 8 + [1] * 8 + [2] * 8


def test_alignment_is_zero_when_a_phase_begins_and_grows_as_the_generator_moves():
    new, before = gan(), gan()
    z, y = noise(5), torch.tensor([0, 1, 2, 0, 3])
    assert alignment_loss(new.train(), before, z, y).item() == 0.0
    with torch.no_grad():
        next(iter(new.generator.parameters())).add_(0.1)
    assert alignment_loss(new, before, z, y).item() > 0
    loss = alignment_loss(new, before, z, y)
    expected = (new.images(z, y) - before.images(z, y)).square().mean()
    assert loss.item() == pytest.approx(expected.item())


@FORMS
def test_what_the_generator_learns_from(form, monkeypatch):
    """Replay: new and drawn images. Alignment: new images, and the generator before for old classes."""
    phases = make_phases((3, 2))
    method = learnt("mergan", phases[:1], mergan_form=form)
    real, aligned = set(), set()
    critic, alignment = mergan.critic_loss, mergan.alignment_loss

    def seen(gan, x, y, *others):
        real.update(y.tolist())
        return critic(gan, x, y, *others)

    def held(gan, before, z, y):
        aligned.update(y.tolist())
        assert before is not gan
        return alignment(gan, before, z, y)

    monkeypatch.setattr(mergan, "critic_loss", seen)
    monkeypatch.setattr(mergan, "alignment_loss", held)
    before = copy.deepcopy(method.generator_network.state_dict())
    kept = method.generator_network
    method.learn(phases[1])
    assert real == ({0, 1, 2, 3, 4} if form == "replay" else {3, 4})
    assert aligned == (set() if form == "replay" else {0, 1, 2})
    after = method.generator_network.state_dict()
    assert any(not torch.equal(value, before[name]) for name, value in after.items())
    assert all(torch.equal(value, before[name]) for name, value in kept.state_dict().items())


@FORMS
def test_no_old_image_is_reachable(form):
    phases = make_phases((3, 2))
    method = learnt("mergan", phases, mergan_form=form)
    shapes = {tuple(phase.images.pixels().shape[1:]) for phase in phases}
    for name, value in method.state_dict().items():
        if isinstance(value, torch.Tensor):
            assert tuple(value.shape[1:]) not in shapes, name
            assert value.dtype != torch.uint8 or value.numel() == 0, name
    assert method.memory().samples == 0
    assert method.memory().statistics == sum(
        part.nbytes for part in method.generator_network.state_dict().values()
    )


def test_losses_are_those_computed_by_hand():
    made, (pixels, y) = gan(), images_of(range(4), per_class=2)
    x, z, mix = pixels.float() / 255, noise(8), torch.full((8, 1, 1, 1), 0.25)
    fake = made.images(z, y).detach()
    (real, classes), (score, asked) = made.judged(x), made.judged(fake)
    slopes = []
    for one in 0.25 * x + 0.75 * fake:
        point = one[None].clone().requires_grad_()
        made.judged(point)[0].sum().backward()
        slopes.append(point.grad.norm().item())
    penalty = sum((slope - 1) ** 2 for slope in slopes) / 8
    wrong = functional.cross_entropy(classes, y)
    expected = (score.mean() - real.mean() + wrong).item() + 10 * penalty
    assert critic_loss(made, x, y, z, mix).item() == pytest.approx(expected, rel=1e-4)
    expected = functional.cross_entropy(asked, y) - score.mean()
    assert generator_loss(made, z, y).item() == pytest.approx(expected.item(), rel=1e-5)


def test_generator_learns_to_draw_the_class_asked_for():
    phases = make_phases((3,), per_class=24)
    method = learnt("mergan", phases, mergan_generator_epochs=60, mergan_generator_rate=2e-3)
    labels = torch.arange(3).repeat_interleave(10)
    drawn = method.generator_network.draw(labels, torch.Generator().manual_seed(1))
    drawn = to_pixels(drawn, method.network.backbone.preprocessing).float()
    pixels, known = phases[0].images.pixels().float(), phases[0].labels
    means = torch.stack([pixels[known == label].mean(0) for label in range(3)])
    nearest = (drawn[:, None] - means[None]).flatten(2).norm(dim=2).argmin(1)
    assert float((nearest == labels).float().mean()) > 0.8


def test_gan_depends_on_its_seed_alone():
    first, second = gan(seed=1).state_dict(), gan(seed=1).state_dict()
    assert all(torch.equal(value, second[name]) for name, value in first.items())
    assert GAN(3, 32, 4, 5, 0).inner == (128, 4, 4)
    drawn = GAN(3, 32, 4, 5, 0).draw(torch.tensor([0, 3]), torch.Generator().manual_seed(0))
    assert drawn.shape == (2, 3, 32, 32)
    assert make_context().settings["mergan_drawn"] == 8
