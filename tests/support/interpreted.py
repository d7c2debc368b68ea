"""Run the convolution kernels in Triton's interpreter on the CPU; print their errors as JSON.

A program of its own, because Triton decides when it is imported whether it interprets or compiles.
"""

import json
import sys

import torch
from torch.nn import functional

from acil.bench.training.convolution import convolution


def tensors(case, dtype=torch.float16):
    """Return input, weight and gradient of the map of a case, channels last."""
    n, channels, outputs, height, width, stride = case
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, channels, height, width, generator=generator)
    weight = torch.randn(outputs, channels, 3, 3, generator=generator) / (9 * channels) ** 0.5
    rows, columns = (height - 1) // stride + 1, (width - 1) // stride + 1
    gradient = torch.randn(n, outputs, rows, columns, generator=generator)
    made = (x, weight, gradient)
    return [tensor.to(dtype).to(memory_format=torch.channels_last) for tensor in made]


def errors(x, weight, gradient, stride, run=convolution):
    """Return the largest errors of map and gradients against float64, relative to the largest value."""
    results = []
    for function, dtype in ((run, x.dtype), (None, torch.float64)):
        leaves = [tensor.detach().to(dtype).requires_grad_() for tensor in (x, weight)]
        if function is None:
            made = functional.conv2d(*leaves, stride=stride, padding=1)
        else:
            made = function(*leaves, stride)
        made.backward(gradient.to(dtype))
        results.append((made.detach(), leaves[0].grad, leaves[1].grad))
    return [
        float((own.double() - true).abs().max() / true.abs().max())
        for own, true in zip(*results, strict=True)
    ]


def errors_of_cuts():
    """Return the errors with cuts whose last tiles reach beyond pixels, taps and parts."""
    from acil.bench.training import (
        kernels,  # needs Triton, which those who import this file may not have
    )

    x, weight, gradient = tensors((3, 16, 32, 7, 5, 1))
    leaves = [tensor.double().requires_grad_() for tensor in (x, weight)]
    made = functional.conv2d(*leaves, padding=1)
    true = [made.detach(), *torch.autograd.grad(made, leaves, gradient.double())]
    own = [torch.empty_like(tensor) for tensor in (gradient, x, weight)]
    kernels.convolve(x, weight, own[0], 1, transposed=False, tiling=kernels.Tiling(32, 128, 16))
    kernels.convolve(gradient, weight, own[1], 1, transposed=True, tiling=kernels.Tiling(16, 64, 16))
    kernels.correlate(gradient, x, own[2], 1, tiling=kernels.SplitTiling(32, 128, 3))
    return [float((a.double() - b).abs().max() / b.abs().max()) for a, b in zip(own, true, strict=True)]


def main():
    found = [errors_of_cuts()]
    for case in json.loads(sys.argv[1]):
        x, weight, gradient = tensors(case)
        found.append(errors(x, weight, gradient, case[-1]))
    x, weight, gradient = tensors((2, 16, 32, 6, 5, 2))
    leaves = [x.requires_grad_(), weight.requires_grad_()]
    checks = torch.library.opcheck(convolution, (*leaves, 2))
    by_nchw = errors(x.contiguous(), weight.contiguous(), gradient.contiguous(), 2)
    compiled = torch.compile(
        lambda x, weight, stride: convolution(x.relu(), weight, stride).relu() + 1,
        backend="aot_eager",
        dynamic=False,
    )
    made = compiled(*leaves, 2)
    made.sum().backward()
    last = [
        tensor.is_contiguous(memory_format=torch.channels_last) for tensor in (made, x.grad, weight.grad)
    ]
    print(json.dumps({"errors": found, "checks": checks, "by_nchw": by_nchw, "last": last}))


if __name__ == "__main__":
    main()
