"""The processes that learn together: what they tell each other, and how they fail together."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from acil import errors
from acil.core.inputs import resolve_device
from acil.errors import ACILError, InputError, ProcessLostError, RemoteError

#: Environment variable: the most seconds that one process waits for another.
TIMEOUT_VARIABLE = "ACIL_DISTRIBUTED_TIMEOUT"
#: A day: the others wait while rank 0 trains a network. A process that dies is noticed at once.
_TIMEOUT = 86_400.0
#: The most seconds that one block of tensors may be under way: all are there, nobody is busy elsewhere.
_BLOCK_TIMEOUT = 600.0
#: Bytes of tensors that travel together: enough for full speed, little beside the sums.
BLOCK_BYTES = 2**26


class Group:
    """Processes that learn together, one of which is this one; see `Group.join`.

    Every call of a group is made by all of its processes, in the same order. Messages go through gloo,
    and so do tensors, unless each process has a GPU of its own: then tensors go through NCCL.

    Attributes
    ----------
    rank, size : int
        The number of this process, and how many there are.
    device : torch.device
        Where this process computes.

    Examples
    --------
    A script that joins a group runs alone, too:

    >>> with Group.join(device="cpu") as group:
    ...     group.rank, group.size, group.exchange("hello")
    (0, 1, ['hello'])
    """

    def __init__(self, device: torch.device) -> None:
        self.rank, self.size, self.device = 0, 1, device
        #: What messages and tensors travel through; None in a group of one.
        self._messages: Any = None
        self._tensors: Any = None
        self._broken = False

    @classmethod
    @contextmanager
    def join(cls, device: str = "auto") -> Iterator[Group]:
        """Join the processes that `torchrun` has started; a process started otherwise is alone.

        A process waits for the others for a day at most, or as many seconds as the environment variable
        ACIL_DISTRIBUTED_TIMEOUT says. One that dies is noticed sooner.

        Parameters
        ----------
        device : str
            ``"cuda"`` (and ``"auto"`` where there is CUDA) gives each process of a machine a GPU by its
            local rank; where there are more processes than GPUs, they share.
        """
        seconds = os.environ.get(TIMEOUT_VARIABLE, _TIMEOUT)
        with suppress(ValueError):
            seconds = float(seconds)
        if not isinstance(seconds, float) or not 0 < seconds < float("inf"):
            raise InputError(f"{TIMEOUT_VARIABLE} is a time-out in seconds, got {seconds!r}.")
        chosen = resolve_device(device, "float64")
        if launched() and chosen.type == "cuda" and chosen.index is None:
            local = int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count()
            chosen = torch.device("cuda", local)
        group = cls(chosen)
        try:
            if launched():
                with group._reaching("the processes could not meet"):
                    group._meet(seconds)
            yield group
            if not group._broken:
                group.exchange()
        finally:
            # Closed connections tell the others. If torch had no group before, it has none now.
            for connection in filter(None, (group._tensors, group._messages)):
                with suppress(RuntimeError, ValueError):
                    dist.destroy_process_group(connection)
            group._messages = group._tensors = None

    @property
    def local_size(self) -> int:
        """Number of processes on this machine."""
        return int(os.environ.get("LOCAL_WORLD_SIZE", self.size)) if self.size > 1 else 1

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which trains, records and prints."""
        return self.rank == 0

    def exchange(self, value: Any = None) -> list[Any]:
        """Give a value to all processes, and return those of all, by rank.

        What a process raised instead of coming here (see `together`) is raised on all of them. If one
        has ended, or has not come within the time-out, that is a ProcessLostError.
        """
        values, failed = [value], isinstance(value, Exception)
        if self._messages is not None:
            values *= self.size
            sent = _common(value) if failed else value
            with self._reaching("it did not answer"):
                dist.all_gather_object(values, sent, group=self._messages)
        for rank, other in enumerate(values):
            if isinstance(other, Exception):
                # An error of its own that is of a class which others do not have is raised as it is.
                as_it_is = failed and type(value).__module__ != errors.__name__
                error = value if as_it_is else type(other)(f"Rank {rank}: {other}")
                error.__dict__["_told"] = True
                raise error
        return values

    @contextmanager
    def together(self) -> Iterator[None]:
        """Succeed or fail together: what one process raises in here, all raise.

        Errors are told at the next `exchange` of the others, or at the end of their block. The message
        names the lowest rank that failed.
        """
        try:
            yield
        except Exception as error:
            # Not to those who are lost, and not twice
            if self._messages is not None and not self._broken and not hasattr(error, "_told"):
                self.exchange(error)
            raise
        else:
            self.exchange()

    @contextmanager
    def _reaching(self, what: str) -> Iterator[None]:
        """Turn what torch says of processes that cannot be reached into a `ProcessLostError`."""
        try:
            yield
        except (RuntimeError, ValueError) as error:
            self._broken = True
            if isinstance(error, ACILError):
                raise
            # What torch says, without its own files and its advice
            reason = re.sub(r"^\[[^]]*\] ", "", str(error)).partition("\n")[0].partition(". ")[0]
            raise ProcessLostError(
                f"A process of the group is lost: {what} ({reason}). Start all processes again; a run "
                "of the benchmark goes on with --resume."
            ) from error

    def _meet(self, timeout: float) -> None:
        gpu = None
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
            # A name that no other GPU has, on whatever machine; torch before 2.5 has no uuid.
            place = f"{socket.gethostname()} {self.device.index}"
            gpu = str(getattr(torch.cuda.get_device_properties(self.device), "uuid", place))
        limit = timedelta(seconds=timeout)
        if dist.is_initialized():
            self._messages = dist.new_group(backend="gloo", timeout=limit)
        else:
            dist.init_process_group("gloo", timeout=limit)
            self._messages = dist.group.WORLD
        self.rank, self.size = dist.get_rank(self._messages), dist.get_world_size(self._messages)
        limit = timedelta(seconds=min(timeout, _BLOCK_TIMEOUT))
        # Apart from messages: a process that fails among tensors can still say so.
        self._tensors = dist.new_group(backend=backend_for(self.exchange(gpu)), timeout=limit)


def all_reduce_(tensor: Tensor, group: Group) -> Tensor:
    """Replace a contiguous tensor by its sum over all processes, in place; the same bits on all."""
    if group._tensors is not None and tensor.numel():
        # NCCL takes tensors from the GPU, gloo from the CPU.
        carrier = group.device if dist.get_backend(group._tensors) == "nccl" else "cpu"
        for block in torch.split(tensor.view(-1), BLOCK_BYTES // tensor.element_size()):
            sent = block.to(carrier)
            with group._reaching("tensors did not arrive"):
                dist.all_reduce(sent, group=group._tensors)
            block.copy_(sent)
    return tensor


def scattered(values: Tensor, places: Tensor, n: int, group: Group) -> Tensor:
    """Return one tensor, of shape (n, …), from rows that the processes have, each at other places.

    Every place from 0 to n − 1 is in exactly one process.
    """
    # Those who have no values because they failed say so now.
    group.exchange()
    whole = values.new_zeros(n, *values.shape[1:])
    whole[places] = values
    return all_reduce_(whole, group)


def share(content: Mapping[str, Any] | None, group: Group) -> dict[str, Any] | None:
    """Give tensors and other values of rank 0 to all; others get tensors on the CPU."""
    names = group.exchange(None if content is None else list(content))[0]
    if names is None:
        return None
    result = dict(content or {}) if group.leads else {}
    for name in () if group._tensors is None else names:
        value = result.get(name)
        # A copy, because of a part of a tensor all of it would travel
        sent = [value.detach().cpu().clone() if isinstance(value, Tensor) else value]
        with group._reaching("tensors did not arrive"):
            dist.broadcast_object_list(sent, src=0, group=group._tensors)
        result.setdefault(name, sent[0])
    return result


def launched() -> bool:
    """Say whether this process is one of several that `torchrun` (or its like) has started."""
    return "RANK" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1"


def backend_for(gpus: Sequence[str | None]) -> str:
    """Return what carries the tensors of processes, by the GPU of each, or None for its CPU."""
    # NCCL refuses processes that share a GPU.
    return "nccl" if None not in gpus and len(set(gpus)) == len(gpus) else "gloo"


def _common(error: Exception) -> ACILError:
    """Return an error as one of the nearest of its classes that all processes have."""
    kinds = (kind for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
    kind: type[ACILError] = next(kinds, ACILError)
    text = str(error) if isinstance(error, ACILError) else f"{type(error).__name__}: {error}"
    return (RemoteError if kind is ACILError else kind)(text)
