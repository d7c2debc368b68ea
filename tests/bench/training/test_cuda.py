"""The training loop on a GPU: recorded steps against plain ones."""

import dataclasses
import threading

import pytest
import torch

from acil.bench.training.augment import SPACE, Augmentation
from acil.bench.training.objectives import CrossEntropy
from acil.bench.training.settings import Auxiliary, Training
from acil.bench.training.step import Step
from acil.encoders.images.backbones import normalise
from support.small_training import fit, make_network

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

SETTINGS = Training(
    epochs=2, batch_size=32, learning_rate=0.05, schedule="cosine", warmup=1, augment=("crop", "flip")
)


def problem(n=150):
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randint(256, (n, 3, 32, 32), generator=generator, dtype=torch.uint8),
        torch.randint(4, (n,), generator=generator),
    )


def resnet():
    return make_network(4, backbone="resnet32")


def on_gpu(network, images, labels, settings, **options):
    preprocessing = network.backbone.preprocessing
    return fit(network, images, labels, settings, preprocessing=preprocessing, device="cuda", **options)


def test_recording_a_graph_leaves_weights_buffers_and_momentum():
    images, labels = problem(32)
    device = torch.device("cuda")
    network = resnet().to(device).train()
    step = Step(network, CrossEntropy(), SETTINGS, device)
    before = {name: tensor.clone() for name, tensor in step.tensors().items()}
    x = normalise(images.to(device), network.backbone.preprocessing)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step._record(x, labels.to(device), torch.arange(32, device=device))
    torch.cuda.synchronize()
    for name, tensor in step.tensors().items():
        assert torch.equal(tensor, before[name]), name


def test_a_graph_is_recorded_while_another_thread_pins_memory():
    # As the thread of a DataLoader does with what workers have decoded.
    images, labels = problem(32)
    device = torch.device("cuda")
    network = resnet().to(device).train()
    step = Step(network, CrossEntropy(), SETTINGS, device)
    x = normalise(images.to(device), network.backbone.preprocessing)
    batch = (x, labels.to(device), torch.arange(32, device=device))
    over, errors, kept = threading.Event(), [], []

    def pin():
        try:
            while not over.is_set():
                kept.append(torch.empty(1000 + len(kept), dtype=torch.uint8).pin_memory())
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=pin)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    thread.start()
    try:
        with torch.cuda.stream(stream):
            for _ in range(3):
                step._record(*batch)
    finally:
        over.set()
        thread.join()
    assert kept
    assert not errors


def test_recorded_steps_equal_plain_ones():
    # Two steps, of 32 and of 22 images. After ten, two plain trainings differ by 0.1: cuDNN's sums have
    # no fixed order, and each step multiplies the difference.
    images, labels = problem(54)

    def plain(network, x, y, indices):
        return CrossEntropy()(network, x, y, indices)

    results, reports = [], []
    for objective in (None, plain):
        once = dataclasses.replace(SETTINGS, epochs=1)
        network = on_gpu(resnet(), images, labels, once, objective=objective, progress=reports.append)
        results.append(network.cpu().state_dict())
    assert reports[-1].accuracy is not None
    for name, value in results[0].items():
        torch.testing.assert_close(value, results[1][name], rtol=1e-2, atol=1e-3)
    assert results[0]["backbone.stem.1.num_batches_tracked"] == 2


# torch.compile imports parts of torch that warn of their own age, and looks at inner gradients.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:The .grad attribute:UserWarning")
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16", "fp16"])
def test_every_precision_trains_and_flags_are_put_back(precision, compiled):
    images, labels = problem()
    before = torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic
    network = resnet()
    settings = dataclasses.replace(
        SETTINGS,
        precision=precision,
        compile=compiled,
        augment=("crop", "flip", "trivialaugment", "trivialaugment-bilinear"),
    )
    on_gpu(network, images, labels, settings)
    assert all(tensor.isfinite().all() for tensor in network.state_dict().values())
    assert (torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic) == before


# torch.compile imports parts of torch that warn of their own age, and looks at inner gradients.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:The .grad attribute:UserWarning")
@pytest.mark.parametrize(
    "tasks",
    [
        Auxiliary(copies=3, colours=3, mixup=0.5, contrast=0.5),
        Auxiliary(copies=1, distillation=0.8, teachers=2),
    ],
)
def test_auxiliary_tasks_run_compiled_and_recorded(tasks):
    images, labels = problem()
    network = resnet()
    settings = dataclasses.replace(SETTINGS, precision="fp16", compile=True, auxiliary=tasks)
    on_gpu(network, images, labels, settings)
    assert all(tensor.isfinite().all() for tensor in network.state_dict().values())
    assert network.state_dict().keys() == resnet().state_dict().keys()


def test_operations_give_the_same_pixels_on_gpu_and_cpu():
    images, _ = problem(31)
    for operation in SPACE:
        on_cpu = operation.apply(images, operation.magnitudes)
        on_gpu = operation.apply(images.cuda(), operation.magnitudes.cuda())
        assert torch.equal(on_gpu.cpu(), on_cpu), operation.name


def test_augmentation_is_repeatable_on_gpu():
    images = problem()[0].cuda()
    augment = Augmentation(("crop", "flip", "jitter", "trivialaugment"))
    first, second = (augment(images, torch.Generator("cuda").manual_seed(1)) for _ in range(2))
    assert torch.equal(first, second)
