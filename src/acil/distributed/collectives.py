"""Tensors between the processes of a group, in blocks so that memory stays bounded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
    if group.tensors is not None:
        for block in _blocks(tensor.view(-1)):
            here = block.to(group.carrier)
            with group.reaching("tensors did not arrive"):
                dist.all_reduce(here, group=group.tensors)
            if here.data_ptr() != block.data_ptr():
                block.copy_(here)
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
    mine: dict[str, Tensor] = {}
    plan = None
    if group.leads and content is not None:
        mine = {name: value for name, value in content.items() if isinstance(value, Tensor)}
        shapes = {name: [_name(value.dtype), *value.shape] for name, value in mine.items()}
        values = {name: value for name, value in content.items() if name not in mine}
        plan = {"shapes": shapes, "values": values}
    plan = group.exchange(plan)[0]
    if plan is None:
        return None
    tensors = {}
    for name, (dtype, *shape) in plan["shapes"].items():
        tensor = mine[name] if group.leads else torch.empty(shape, dtype=getattr(torch, dtype))
        _broadcast_(tensor.detach().contiguous(), group)
        tensors[name] = tensor
    return {**tensors, **plan["values"]}


def _broadcast_(tensor: Tensor, group: Group) -> None:
    if group.tensors is None or tensor.numel() == 0:
        return
    # As bytes, because no backend has every type of torch.
    for block in _blocks(tensor.view(-1).view(torch.uint8)):
        here = block.to(group.carrier)
        with group.reaching("tensors did not arrive"):
            dist.broadcast(here, src=_first(group), group=group.tensors)
        if not group.leads and here.data_ptr() != block.data_ptr():
            block.copy_(here)


def _first(group: Group) -> int:
    """Return the number of rank 0 in the default group, which may be a larger one."""
    return dist.get_global_rank(group.tensors, 0)


def _blocks(flat: Tensor) -> Iterator[Tensor]:
    return iter(torch.split(flat, BLOCK_BYTES // flat.element_size()) if flat.numel() else ())


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
