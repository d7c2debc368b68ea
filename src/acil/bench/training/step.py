"""One step of stochastic gradient descent: plain, or as a CUDA graph."""

from __future__ import annotations

import copy
import dataclasses
import importlib.util
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from acil.bench.training.convolution import use_fast_convolutions
from acil.bench.training.objectives import Objective
from acil.bench.training.settings import Training
from acil.encoders.images.backbones import Backbone
from acil.errors import InputError

#: cuDNN chooses its algorithms and the optimiser makes its state before a graph is recorded.
_WARMUP_STEPS = 3
#: The loss is multiplied by it in float16, whose smallest numbers would otherwise swallow gradients; it
#: is halved when a gradient overflows (that step is left out), and doubled after 2,000 good steps.
_FIRST_LOSS_SCALE = 1024.0
#: Forms of blocks that a process may compile.
_COMPILED_FORMS = 128
#: torch.compile makes GPU kernels with Triton, which some builds of torch leave out.
_CAN_COMPILE = importlib.util.find_spec("triton") is not None
#: What autocast computes in; float16 is for GPUs only, CPUs have no fast arithmetic for it.
_AUTOCAST = {"bf16": torch.bfloat16}
#: Layers whose weights are kept in half precision; all others share the network's own tensors.
_HALVED = (nn.Conv2d, nn.Linear)


def make_optimizer(network: nn.Module, settings: Training, device: torch.device) -> torch.optim.SGD:
    """Return SGD over all trainable parameters, its momentum at zero.

    On a GPU the rate is a tensor, so that a recorded graph sees its changes.
    """
    trainable = [parameter for parameter in network.parameters() if parameter.requires_grad]
    if not trainable:
        raise InputError("The network has no trainable parameter. Unfreeze some, or do not train it.")
    on_gpu, rate = device.type == "cuda", settings.learning_rate
    spared = [] if settings.decay_all else [p for p in trainable if p.ndim <= 1]
    decayed = trainable if settings.decay_all else [p for p in trainable if p.ndim > 1]
    groups: list[dict[str, Any]] = [{"params": decayed}, {"params": spared, "weight_decay": 0.0}]
    optimizer = torch.optim.SGD(
        [group for group in groups if group["params"]],
        lr=torch.tensor(rate, device=device) if on_gpu else rate,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
        nesterov=settings.nesterov,
        fused=on_gpu,
    )
    if settings.momentum:
        # 0.9 · 0 + g is what the first step would set; existing buffers can be saved, loaded and reset.
        for parameter in trainable:
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return optimizer


def compile_parts(network: nn.Module) -> None:
    """Compile the blocks of a network in place; one without known blocks as a whole.

    Blocks of the same shape share what is compiled, so ResNet-32 costs six short compilations instead of
    a long one, and runs as fast.
    """
    blocks = [
        block
        for module in network.modules()
        if isinstance(module, Backbone)
        for block in module.taps().values()
    ]
    # Shapes of blocks, of students and teachers, of all methods of a process: more than the usual eight,
    # beyond which blocks would run as they are.
    limits: Any = torch._dynamo.config
    limits.recompile_limit = max(limits.recompile_limit, _COMPILED_FORMS)
    for module in blocks or [network]:
        module.compile(dynamic=False)


def halved(network: nn.Module) -> tuple[nn.Module, list[tuple[nn.Parameter, nn.Parameter]]]:
    """Return a copy to be run under autocast, and each float32 weight with its half.

    Whatever is not the weight or bias of a convolution or a linear layer is shared with the copy.
    """
    shared = [*network.parameters(), *network.buffers()]
    made = copy.deepcopy(network, memo={id(tensor): tensor for tensor in shared})
    pairs = []
    for module in made.modules():
        if isinstance(module, _HALVED):
            for name, weight in list(module.named_parameters(recurse=False)):
                half = nn.Parameter(weight.detach().half(), requires_grad=weight.requires_grad)
                setattr(module, name, half)
                pairs.append((weight, half))
    return made, pairs


class HalfPrecisionCopy:
    """Run a network with float16 weights, and train its float32 weights with the gradients.

    Autocast alone casts every weight and every gradient in a kernel of its own, some hundred a step for
    ResNet-32. Here one call casts all weights after a step, and one call all gradients before it.

    ``network`` is the copy, to be run under autocast.
    """

    def __init__(self, network: nn.Module) -> None:
        self.network, pairs = halved(network)
        self._weights: list[Tensor] = [weight for weight, _ in pairs]
        self._halves: list[Tensor] = [half for _, half in pairs]
        self._counters: list[Tensor] = []
        for module in self.network.modules():
            if isinstance(module, nn.BatchNorm2d) and module.num_batches_tracked is not None:
                # Counted together, instead of by one kernel for each layer.
                self._counters.append(module.num_batches_tracked)
                module.num_batches_tracked = None
        self._pairs = [(weight, half) for weight, half in pairs if weight.requires_grad]
        for weight, _ in self._pairs:
            weight.grad = torch.zeros_like(weight)

    def clear(self) -> None:
        """Forget the gradients of the last step."""
        for parameter in self.network.parameters():
            parameter.grad = None

    def collect(self) -> None:
        """Hand the gradients of the copy to the float32 weights."""
        gradients = [weight.grad for weight, half in self._pairs if half.grad is not None]
        new = [half.grad for _, half in self._pairs if half.grad is not None]
        if new:
            torch._foreach_copy_(gradients, new)  # type: ignore[arg-type]

    @torch.no_grad()
    def refresh(self) -> None:
        """Take over the float32 weights."""
        if self._halves:
            torch._foreach_copy_(self._halves, self._weights)

    @torch.no_grad()
    def count(self) -> None:
        """Count the batch in the layers that normalise."""
        if self._counters:
            torch._foreach_add_(self._counters, 1)


def _with_fast_teacher(
    objective: Objective, half: bool, compiled: bool, device: torch.device
) -> Objective:
    """Return an objective whose teacher, if it has one, is a copy that runs as fast as the network."""
    if not half or objective.teacher is None:
        return objective
    # What autocast would do to its weights at every step is done once.
    fast, _ = halved(objective.teacher)
    if compiled:
        use_fast_convolutions(fast, device)
        compile_parts(fast)
    return dataclasses.replace(objective, teacher=fast)  # type: ignore[type-var]


class Step:
    """Runs steps of a network on the device, in training mode, and sums loss and hits there."""

    def __init__(
        self, network: nn.Module, objective: Objective, settings: Training, device: torch.device
    ) -> None:
        self._network, self._device = network, device
        on_gpu = device.type == "cuda"
        half = settings.precision == "fp16" and on_gpu
        self._autocast = torch.float16 if half else _AUTOCAST.get(settings.precision)
        self._optimizer = make_optimizer(network, settings, device)
        self._half = HalfPrecisionCopy(network) if half else None
        self._scaler = torch.amp.GradScaler(device.type, init_scale=_FIRST_LOSS_SCALE, enabled=half)
        # Its tensors are made at the first call, which must not be while a graph is recorded.
        self._scaler.scale(torch.zeros(1, device=device))
        self._model: nn.Module = network if self._half is None else self._half.network
        #: Other sizes run as they are: a smaller batch ends an epoch, and is not worth a compilation.
        self._compiled_size = (
            settings.batch_size if settings.compile and on_gpu and _CAN_COMPILE else None
        )
        if self._compiled_size is not None:
            if self._half is not None:
                # Only in the copy: the network itself is evaluated as ever.
                use_fast_convolutions(self._model, device)
            compile_parts(self._model)
        self._objective = _with_fast_teacher(objective, half, self._compiled_size is not None, device)
        self._limit = objective.gradient_limit
        self._totals = torch.zeros(2, device=device)
        self._scored = False
        self._graphs: dict[int, Any] | None = {} if on_gpu and objective.capturable else None

    def __call__(self, *batch: Tensor) -> None:
        """Do one step on what :meth:`acil.bench.training.loop.Batches.epoch` yields."""
        if self._graphs is None:
            self._run(*batch)
            return
        # One graph for full batches, one for the smaller batch that may end an epoch.
        size = len(batch[1])
        if size not in self._graphs:
            self._graphs[size] = self._record(*batch)
        graph, inputs = self._graphs[size]
        for static, new in zip(inputs, batch, strict=True):
            static.copy_(new)
        graph.replay()

    def set_rate(self, rate: float) -> None:
        """Set the learning rate of the steps to come."""
        for group in self._optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def tensors(self) -> dict[str, Tensor]:
        """Return everything that a step changes, by name; writing into it changes the training."""
        named = dict(self._network.named_parameters())
        tensors = {f"network.{name}": parameter.detach() for name, parameter in named.items()}
        tensors |= {f"network.{name}": buffer for name, buffer in self._network.named_buffers()}
        for name, parameter in named.items():
            buffer = self._optimizer.state.get(parameter, {}).get("momentum_buffer")
            if buffer is not None:
                tensors[f"momentum.{name}"] = buffer
        scaler: Any = self._scaler
        if self._half is not None:
            # Its tensors themselves: its own interface copies them to the host.
            tensors["loss_scale"], tensors["good_steps"] = scaler._scale, scaler._growth_tracker
        return {**tensors, "totals": self._totals}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Write values into what :meth:`tensors` returns."""
        for name, tensor in self.tensors().items():
            tensor.copy_(tensors[name])
        if self._half is not None:
            self._half.refresh()
        self._scored |= bool(tensors["totals"][1] > 0)

    def reset_totals(self) -> None:
        """Start the sums of a new epoch."""
        self._totals.zero_()

    def mean_loss_and_accuracy(self, seen: int) -> tuple[float, float | None]:
        """Return the mean loss and the accuracy in percent of this epoch; waits for the device."""
        loss, hits = self._totals.tolist()
        return loss / max(seen, 1), 100 * hits / max(seen, 1) if self._scored else None

    def close(self) -> None:
        """Free the graphs and the gradients, and undo :func:`compile_parts`."""
        self._graphs = None
        self._optimizer.zero_grad(set_to_none=True)
        for module in self._network.modules():
            module._compiled_call_impl = None

    def _run(self, x: Tensor, y: Tensor, *others: Tensor) -> None:
        if self._half is None:
            self._optimizer.zero_grad(set_to_none=True)
        else:
            self._half.clear()
        autocast = torch.autocast(self._device.type, self._autocast, enabled=self._autocast is not None)
        with autocast, self._stance(len(y)):
            result = self._objective(self._model, x, y, *others)
        loss, scores = result if isinstance(result, tuple) else (result, None)
        self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        if self._half is not None:
            self._half.collect()
        self._clamp()
        self._scaler.step(self._optimizer)
        self._scaler.update()
        if self._half is not None:
            self._half.refresh()
            self._half.count()
        with torch.no_grad():
            self._totals[0] += loss.detach().float() * len(y)
            if scores is not None:
                self._scored = True
                self._totals[1] += (scores.argmax(1) == y).sum()

    def _clamp(self) -> None:
        if self._limit is None:
            return
        # Before clamping, which would hide that a gradient has overflowed.
        self._scaler.unscale_(self._optimizer)
        parameters = [p for group in self._optimizer.param_groups for p in group["params"]]
        gradients = [p.grad for p in parameters if p.grad is not None]
        torch._foreach_clamp_min_(gradients, -self._limit)
        torch._foreach_clamp_max_(gradients, self._limit)

    def _stance(self, size: int) -> AbstractContextManager[Any]:
        if self._compiled_size in (None, size):
            return nullcontext()
        eager: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
        return eager

    def _record(self, *batch: Tensor) -> tuple[torch.cuda.CUDAGraph, tuple[Tensor, ...]]:
        """Return a recorded step for this batch size, and the tensors that it reads.

        Weights, buffers and momentum stay as they are.
        """
        before = {name: tensor.clone() for name, tensor in self.tensors().items()}
        # clone keeps the channels-last layout.
        inputs = tuple(part.clone() for part in batch)
        for _ in range(_WARMUP_STEPS):
            self._run(*inputs)
        graph = torch.cuda.CUDAGraph()
        # On the stream of the other steps: gradients belong to the stream that first made them. Only
        # this thread is watched: another one pins the batches that workers have decoded meanwhile.
        stream = torch.cuda.current_stream()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            self._run(*inputs)
        self.load(before)
        return graph, inputs
