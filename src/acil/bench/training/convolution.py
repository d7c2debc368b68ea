"""3 x 3 convolutions of half-precision training by kernels of our own, where they fit.

cuDNN serves convolutions of many channels well. Those of small networks, 16 to 64 channels on maps of
8 to 32 pixels, take it several times as long as moving their bytes does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

#: The kernels hold all channels of a place in one tile, whose sides are powers of two.
_CHANNELS = (16, 32, 64, 128)
_HALF = (torch.float16, torch.bfloat16)
#: Offsets are 32-bit numbers.
_MOST_ELEMENTS = 2**31 - 1
#: The first generation of GPUs whose tensor cores know both half precisions.
_CAPABILITY = (8, 0)


def _last(tensor: Tensor) -> Tensor:
    return tensor.contiguous(memory_format=torch.channels_last)


def _like(tensor: Tensor, *shape: int) -> Tensor:
    return torch.empty(
        shape, dtype=tensor.dtype, device=tensor.device, memory_format=torch.channels_last
    )


def _map(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    height, width = ((size - 1) // stride + 1 for size in x.shape[2:])
    return _like(x, x.shape[0], weight.shape[0], height, width)


@torch.library.custom_op("acil::convolution", mutates_args=())
def convolution(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """Return the 3 x 3 convolution with padding 1 of a map (n, c, h, w), channels last.

    The weight has shape (outputs, c, 3, 3); both are of the same half precision.
    """
    from acil.bench.training import kernels

    made = _map(x, weight, stride)
    kernels.convolve(_last(x), _last(weight), made, stride, transposed=False)
    return made


@convolution.register_fake
def _(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    return _map(x, weight, stride)


@torch.library.custom_op("acil::convolution_input_gradient", mutates_args=())
def _input_gradient(gradient: Tensor, weight: Tensor, height: int, width: int, stride: int) -> Tensor:
    from acil.bench.training import kernels

    made = _like(gradient, gradient.shape[0], weight.shape[1], height, width)
    kernels.convolve(_last(gradient), _last(weight), made, stride, transposed=True)
    return made


@_input_gradient.register_fake
def _(gradient: Tensor, weight: Tensor, height: int, width: int, stride: int) -> Tensor:
    return _like(gradient, gradient.shape[0], weight.shape[1], height, width)


@torch.library.custom_op("acil::convolution_weight_gradient", mutates_args=())
def _weight_gradient(gradient: Tensor, x: Tensor, stride: int) -> Tensor:
    from acil.bench.training import kernels

    made = _like(gradient, gradient.shape[1], x.shape[1], 3, 3)
    kernels.correlate(_last(gradient), _last(x), made, stride)
    return made


@_weight_gradient.register_fake
def _(gradient: Tensor, x: Tensor, stride: int) -> Tensor:
    return _like(gradient, gradient.shape[1], x.shape[1], 3, 3)


def _remember(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:
    x, weight, ctx.stride = inputs
    ctx.save_for_backward(x, weight)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    x, weight = ctx.saved_tensors
    of_x = of_weight = None
    if ctx.needs_input_grad[0]:
        of_x = _input_gradient(gradient, weight, x.shape[2], x.shape[3], ctx.stride)
    if ctx.needs_input_grad[1]:
        of_weight = _weight_gradient(gradient, x, ctx.stride)
    return of_x, of_weight, None


convolution.register_autograd(_backward, setup_context=_remember)


class FastConv2d(nn.Conv2d):
    """A convolution that runs our kernels on what suits them, and everything else as before."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the map; a float32 input is cast, as autocast would."""
        return _fast(self, x, self.weight)


class ScaledConv2d(nn.Conv2d):
    """A convolution with kernels w and one scale for each, first 1: w_oi · scale_oi."""

    scale: nn.Parameter

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        shape = (*self.weight.shape[:2], 1, 1)
        self.scale = nn.Parameter(torch.ones(shape, device=self.weight.device))

    def forward(self, x: Tensor) -> Tensor:
        """Return the map."""
        made: Tensor = self._conv_forward(x, self.weight * self.scale, self.bias)
        return made


class FastScaledConv2d(ScaledConv2d):
    """The same by our kernels, where they fit."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the map; a float32 input is cast, as autocast would."""
        return _fast(self, x, self.weight * self.scale)


#: What half-precision training on a GPU runs instead.
_FAST: dict[type[nn.Module], type[nn.Conv2d]] = {nn.Conv2d: FastConv2d, ScaledConv2d: FastScaledConv2d}


def _fast(module: nn.Conv2d, x: Tensor, weight: Tensor) -> Tensor:
    made: Tensor
    if x.is_cuda and suits(x, weight):
        made = convolution(x.to(weight.dtype), weight, module.stride[0])
    else:
        made = module._conv_forward(x, weight, module.bias)
    return made


def suits(x: Tensor, weight: Tensor) -> bool:
    """Return whether the kernels can compute this product, apart from the device."""
    if x.dim() != 4 or not x.is_floating_point() or weight.dtype not in _HALF:
        return False
    places = x.shape[0] * x.shape[2] * x.shape[3]
    return places > 0 and places * max(weight.shape[:2]) <= _MOST_ELEMENTS


def eligible(module: nn.Module) -> bool:
    """Return whether a module is a 3 x 3 convolution of the kind that the kernels compute."""
    return (
        isinstance(module, nn.Conv2d)
        and type(module) in _FAST
        and module.kernel_size == (3, 3)
        and module.stride in ((1, 1), (2, 2))
        and module.padding == (1, 1)
        and module.dilation == (1, 1)
        and module.groups == 1
        and module.bias is None
        and module.padding_mode == "zeros"
        and module.in_channels in _CHANNELS
        and module.out_channels in _CHANNELS
        and module.weight.dtype in _HALF
    )


def replace_convolutions(network: nn.Module, chosen: Mapping[nn.Module, type[nn.Conv2d]]) -> None:
    """Put convolutions of other kinds, with the same parameters, where those of a network were."""
    for parent in list(network.modules()):
        for name, module in list(parent.named_children()):
            if module in chosen:
                setattr(parent, name, _converted(cast(nn.Conv2d, module), chosen[module]))


def _converted(module: nn.Conv2d, kind: type[nn.Conv2d]) -> nn.Conv2d:
    """Return a convolution of another kind that has the very parameters of a given one."""
    with torch.device("meta"):
        made = kind(
            module.in_channels,
            module.out_channels,
            module.kernel_size,  # type: ignore[arg-type]
            module.stride,  # type: ignore[arg-type]
            module.padding,  # type: ignore[arg-type]
            module.dilation,  # type: ignore[arg-type]
            module.groups,
            module.bias is not None,
            module.padding_mode,
        )
    for name, parameter in made.named_parameters():
        present = getattr(module, name, None)
        like = torch.ones(parameter.shape, device=module.weight.device)
        setattr(made, name, nn.Parameter(like) if present is None else present)
    return made.train(module.training)


def use_fast_convolutions(network: nn.Module, device: torch.device) -> int:
    """Let the eligible convolutions of a half-precision copy run our kernels; return their number.

    Parameters and their names stay, and nothing is undone. On a GPU that cannot run the kernels there
    are none. Triton must be there.
    """
    if torch.cuda.get_device_capability(device) < _CAPABILITY:
        return 0
    chosen = {module: _FAST[type(module)] for module in network.modules() if eligible(module)}
    replace_convolutions(network, chosen)
    return len(chosen)
