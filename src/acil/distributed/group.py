"""The processes that learn together: what they tell each other, and how they fail together."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from acil import errors
from acil.errors import ACILError, InputError, ProcessLostError, RemoteError
from acil.validation import resolve_device

#: Environment variable: the most seconds that one process waits for another.
TIMEOUT_VARIABLE = "ACIL_DISTRIBUTED_TIMEOUT"
#: A day: the others wait while rank 0 trains a network. A process that dies is noticed at once.
_TIMEOUT = 86_400.0
#: The most seconds that one block of tensors may be under way: all are there, nobody is busy elsewhere.
_BLOCK_TIMEOUT = 600.0
#: Errors that every process can make from a text.
_KNOWN = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type)}
_CURE = "Start all processes again; a run of the benchmark goes on with --resume."


class Group:
    """Processes that learn together, one of which is this one; see `Group.join`.

    Every call of a group is made by all of its processes, in the same order. Messages go through gloo,
    and so do tensors, unless each process has a GPU of its own: then tensors go through NCCL.

    Parameters
    ----------
    device : torch.device
        Where this process computes.
    timeout : float or None
        The most seconds to wait for another process; None for a group of one.

    Attributes
    ----------
    rank, size : int
        The number of this process, and how many there are.
    tensors : ProcessGroup or None
        What tensors travel through; None in a group of one.
    carrier : torch.device
        Where tensors have to be to travel: this process's GPU with NCCL, the CPU with gloo.

    Examples
    --------
    A script that joins a group runs alone, too:

    >>> with Group.join(device="cpu") as group:
    ...     group.rank, group.size, group.exchange("hello")
    (0, 1, ['hello'])
    """

    def __init__(self, device: torch.device, timeout: float | None) -> None:
        self.rank, self.size, self.device = 0, 1, device
        self.carrier = torch.device("cpu")
        self.tensors: Any = None
        self._messages: Any = None
        self._owns_default = self._broken = False
        if timeout is not None:
            try:
                with self.reaching("the processes could not meet"):
                    self._meet(timeout)
            except BaseException:
                self._leave()
                raise

    @classmethod
    def join(cls, device: str = "auto", timeout: float | None = None) -> Group:
        """Join the processes that `torchrun` has started; a process started otherwise is alone.

        Parameters
        ----------
        device : str
            ``"cuda"`` (and ``"auto"`` where there is CUDA) gives each process of a machine a GPU by its
            local rank; where there are more processes than GPUs, they share.
        timeout : float, optional
            The most seconds to wait for another process: by default the environment variable
            ACIL_DISTRIBUTED_TIMEOUT, or a day. A process that dies is noticed sooner.
        """
        seconds = _checked_timeout(os.environ.get(TIMEOUT_VARIABLE) if timeout is None else timeout)
        own = resolve_device(device, "float64")
        if not launched():
            return cls(own, None)
        if not dist.is_available():
            raise InputError(
                "This torch has no torch.distributed. Install one that has, or use one process."
            )
        if own.type not in ("cpu", "cuda"):
            raise InputError(f"Groups compute on CPUs or CUDA, not on {own.type!r}. Set device='cpu'.")
        if own.type == "cuda" and own.index is None:
            local = int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count()
            own = torch.device("cuda", local)
        return cls(own, seconds)

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

        Parameters
        ----------
        value : anything that JSON can write

        Raises
        ------
        ACILError
            If a process has failed instead of coming here (see `together`); the same on all of them.
        ProcessLostError
            If a process has ended, or has not come here within the time-out.
        """
        return self._exchange({"value": value}, None)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Succeed or fail together: what one process raises in here, all raise.

        Errors are told at the next `exchange` of the others, or at the end of their block. The message
        names the lowest rank that failed.
        """
        try:
            yield
        except ProcessLostError:
            raise
        except Exception as error:
            if not getattr(error, "_told", False):
                self._exchange(_described(error), error)
            raise
        else:
            self.exchange()

    @contextmanager
    def reaching(self, what: str) -> Iterator[None]:
        """Turn what torch says of processes that cannot be reached into a `ProcessLostError`.

        Parameters
        ----------
        what : str
            What went wrong then.
        """
        try:
            yield
        except (RuntimeError, ValueError) as error:
            self._broken = True
            if isinstance(error, ACILError):
                raise
            # What torch says, without its own files and its advice
            reason = re.sub(r"^\[[^]]*\] ", "", str(error)).partition("\n")[0].partition(". ")[0]
            raise ProcessLostError(
                f"A process of the group is lost: {what} ({reason}). {_CURE}"
            ) from error

    def close(self) -> None:
        """Leave the group: in good order when all have come here, at once if one is lost."""
        try:
            if not self._broken:
                self.exchange()
        finally:
            self._leave()

    def __enter__(self) -> Group:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if value is None:
            self.close()
        else:
            # Closed connections tell the others.
            self._leave()

    def _meet(self, timeout: float) -> None:
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        limit = timedelta(seconds=timeout)
        if dist.is_initialized():
            self._messages = dist.new_group(backend="gloo", timeout=limit)
        else:
            dist.init_process_group("gloo", timeout=limit)
            self._messages, self._owns_default = dist.group.WORLD, True
        self.rank, self.size = dist.get_rank(self._messages), dist.get_world_size(self._messages)
        backend = backend_for(self.exchange(_gpu(self.device)))
        limit = timedelta(seconds=min(timeout, _BLOCK_TIMEOUT))
        # Apart from messages: a process that fails among tensors can still say so.
        self.tensors = dist.new_group(backend=backend, timeout=limit)
        if backend == "nccl":
            self.carrier = self.device

    def _exchange(self, message: dict[str, Any], own_error: Exception | None) -> list[Any]:
        if self._messages is None:
            if own_error is not None:
                raise own_error
            return [json.loads(json.dumps(message["value"]))]
        with self.reaching("it did not answer"):
            messages = [json.loads(text) for text in self._gather(json.dumps(message).encode())]
        for rank, found in enumerate(messages):
            if "error" in found:
                raise _told(rank, found, own_error)
        return [found["value"] for found in messages]

    def _gather(self, text: bytes) -> list[bytes]:
        """Return the texts of all processes. torch's own function for objects would unpickle them."""
        lengths = self._all_gather(torch.tensor([len(text)]))
        longest = max(int(length) for length in lengths)
        mine = torch.frombuffer(bytearray(text.ljust(longest)), dtype=torch.uint8)
        return [bytes(part.tolist()) for part in self._all_gather(mine)]

    def _all_gather(self, tensor: Tensor) -> list[Tensor]:
        found = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(found, tensor, group=self._messages)
        return found

    def _leave(self) -> None:
        # All that torch has, or what this group has added to it
        mine = [None] if self._owns_default else {self.tensors, self._messages} - {None}
        self._messages = self.tensors = None
        for group in mine:
            with suppress(RuntimeError, ValueError):
                dist.destroy_process_group(group)


def launched() -> bool:
    """Say whether this process is one of several that `torchrun` (or its like) has started."""
    return "RANK" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1"


def backend_for(gpus: Sequence[str | None]) -> str:
    """Return what carries the tensors of processes.

    Parameters
    ----------
    gpus : sequence of str or None
        Which GPU each process has; None for one that computes on its CPU.

    Examples
    --------
    >>> backend_for(["GPU-1", "GPU-2"]), backend_for(["GPU-1", "GPU-1"]), backend_for([None, None])
    ('nccl', 'gloo', 'gloo')
    """
    # NCCL refuses processes that share a GPU.
    return "nccl" if None not in gpus and len(set(gpus)) == len(gpus) else "gloo"


def _gpu(device: torch.device) -> str | None:
    """Return a name that no other GPU has, on whatever machine."""
    if device.type != "cuda":
        return None
    # Older versions of torch do not have the first one.
    unique = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return f"{socket.gethostname()} {device.index}" if unique is None else str(unique)


def _checked_timeout(value: Any) -> float:
    try:
        seconds = _TIMEOUT if value is None else float(value)
    except (TypeError, ValueError):
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise InputError(f"The time-out of a group ({TIMEOUT_VARIABLE}) is in seconds, got {value!r}.")
    return seconds


def _described(error: Exception) -> dict[str, str]:
    """Return an error as a message: its text, and the nearest of its classes that all processes have.

    Examples
    --------
    >>> _described(errors.InputError("X has no rows."))
    {'error': 'X has no rows.', 'kind': 'InputError'}
    >>> _described(MemoryError("too wide"))
    {'error': 'MemoryError: too wide', 'kind': 'RemoteError'}
    """
    kind = next((kind for kind in type(error).__mro__ if kind in _KNOWN.values()), RemoteError)
    text = str(error) if isinstance(error, ACILError) else f"{type(error).__name__}: {error}"
    return {"error": text, "kind": (RemoteError if kind is ACILError else kind).__name__}


def _told(rank: int, message: dict[str, Any], own: Exception | None) -> Exception:
    """Return what this process raises for an error of a rank that all processes have heard of.

    An error of its own that is of a class which others do not have is raised as it is.
    """
    error = own
    if error is None or type(error) in _KNOWN.values():
        error = _KNOWN.get(message["kind"], RemoteError)(f"Rank {rank}: {message['error']}")
    error.__dict__["_told"] = True
    return error
