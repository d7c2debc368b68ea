"""Tensors between the processes of a group, in blocks so that memory stays bounded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from acil.distributed.group import Group

#: Bytes that travel together: enough for full speed, little beside the sums.
BLOCK_BYTES = 2**26


def all_reduce_(tensor: Tensor, group: Group) -> Tensor:
    """Replace a tensor by its sum over all processes, in place; the bits are the same on all.

    Parameters
    ----------
    tensor : Tensor, contiguous
        Of the same shape and type on all processes.
    group : Group
    """
    _in_blocks(tensor.view(-1), group, dist.all_reduce)
    return tensor


def scattered(values: Tensor, places: Tensor, n: int, group: Group) -> Tensor:
    """Return one tensor from rows that the processes have, each at other places.

    Parameters
    ----------
    values : Tensor of shape (k, …)
        Rows of this process.
    places : Tensor of shape (k,), int64
        Where they belong; every place from 0 to n − 1 is in exactly one process.
    n : int
    group : Group

    Returns
    -------
    Tensor of shape (n, …)
        The same on all processes, and exact: each number is added to zeros.
    """
    # Those who have no values because they failed say so now.
    group.exchange()
    whole = values.new_zeros(n, *values.shape[1:])
    whole[places] = values
    return all_reduce_(whole, group)


def share(content: Mapping[str, Any] | None, group: Group) -> dict[str, Any] | None:
    """Give tensors and plain values of rank 0 to all processes.

    Parameters
    ----------
    content : Mapping or None
        Tensors and what JSON can write; read on rank 0 only.
    group : Group

    Returns
    -------
    dict or None
        What rank 0 had: there as it was, elsewhere with tensors on the CPU.
    """
    plan = None
    if group.leads and content is not None:
        tensors = {name: value for name, value in content.items() if isinstance(value, Tensor)}
        shapes = {name: [str(t.dtype).removeprefix("torch."), *t.shape] for name, t in tensors.items()}
        plan = [shapes, {name: value for name, value in content.items() if name not in tensors}]
    plan = group.exchange(plan)[0]
    if plan is None:
        return None
    shapes, values = plan
    if not group.leads:
        tensors = {n: torch.empty(s, dtype=getattr(torch, dtype)) for n, (dtype, *s) in shapes.items()}
    for name in shapes:
        # As bytes, because no backend has every type of torch
        flat = tensors[name].detach().contiguous().view(-1)
        if len(flat):
            _in_blocks(flat.view(torch.uint8), group, dist.broadcast, src=0)
    return {**tensors, **values}


def _in_blocks(flat: Tensor, group: Group, act: Any, **options: Any) -> None:
    """Let an operation of `torch.distributed` change a tensor, block by block where tensors travel."""
    if group.tensors is None:
        return
    for block in torch.split(flat, BLOCK_BYTES // flat.element_size()) if len(flat) else ():
        here = block.to(group.carrier)
        with group.reaching("tensors did not arrive"):
            act(here, group=group.tensors, **options)
        if here.data_ptr() != block.data_ptr():
            block.copy_(here)
