"""The processes that learn together: who they are, what they tell each other, how they fail together."""

from __future__ import annotations

import itertools
import json
import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from types import TracebackType
from typing import Any

import torch
from torch import distributed as dist

from acil.distributed.failures import agreed, described, is_agreed, lost
from acil.distributed.watch import Heartbeat, Watch, say_farewell
from acil.errors import InputError, ProcessLostError
from acil.validation import resolve_device

#: Environment variable: seconds without a sign of life after which a process counts as lost.
TIMEOUT_VARIABLE = "ACIL_DISTRIBUTED_TIMEOUT"
_TIMEOUT = 300.0
_LONGEST_PAUSE = 0.05
_STORE_GONE = "the store of the group cannot be reached"
_numbers = itertools.count()


class Group:
    """Processes that learn together, one of which is this one.

    Every call of a group is made by all of its processes, in the same order. Control goes through a
    store, tensors through NCCL if each process has a GPU of its own, else through gloo.

    Parameters
    ----------
    store : torch.distributed.Store or None
        Shared by all processes; None for a group of one.
    rank, size : int
        The number of this process, and how many there are.
    device : torch.device
        Where this process computes.
    timeout : float
        Seconds without a sign of life after which a process counts as lost, and the most that moving
        one block of tensors may take. Waiting for a process that is alive has no limit.

    Attributes
    ----------
    carrier : torch.device
        Where tensors have to be to travel: this process's GPU with NCCL, the CPU with gloo.

    Examples
    --------
    A script that joins a group runs alone, too:

    >>> with Group.join(device="cpu") as group:
    ...     group.rank, group.size, group.exchange("hello")
    (0, 1, ['hello'])
    """

    def __init__(
        self, store: Any, rank: int, size: int, device: torch.device, timeout: float = _TIMEOUT
    ) -> None:
        self.rank, self.size, self.device, self.timeout = rank, size, device, timeout
        self._number, self._store, self._owns_default = 0, store, False
        self._broken = False
        self._heartbeat: Heartbeat | None = None
        self.tensors: Any = None
        self.carrier = torch.device("cpu")
        if store is None:
            return
        # A process may join one group after another in the same store.
        self._store = store = dist.PrefixStore(f"acil/{next(_numbers)}", store)  # type: ignore[attr-defined]
        try:
            with self.reaching("the processes could not meet"):
                self._heartbeat = Heartbeat(store, rank, timeout)
                self.tensors = self._process_group()
        except ProcessLostError:
            self._close("It could not join.")
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
            By default the environment variable ACIL_DISTRIBUTED_TIMEOUT, or 300 seconds.
        """
        seconds = _checked_timeout(os.environ.get(TIMEOUT_VARIABLE) if timeout is None else timeout)
        if not launched():
            return cls(None, 0, 1, resolve_device(device, "float64"), seconds)
        if not dist.is_available():
            raise InputError(
                "This torch has no torch.distributed. Install one that has, or use one process."
            )
        own = _own_device(resolve_device(device, "float64"))
        try:
            limit = timedelta(seconds=seconds)
            store, rank, size = next(dist.rendezvous("env://", timeout=limit))  # type: ignore[attr-defined]
        except (RuntimeError, ValueError) as error:
            raise lost("the processes could not meet", error) from error
        return cls(store, rank, size, own, seconds)

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
            If a process has ended or given no sign of life for the time-out.
        """
        return self._exchange({"value": value}, None)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Succeed or fail together: what one process raises in here, all raise.

        Errors are told at the next `exchange` of the others, or at the end of their block: between two
        of these a process that fails makes nobody wait. The message names the lowest rank that failed.
        """
        try:
            yield
        except ProcessLostError:
            raise
        except Exception as error:
            if not is_agreed(error):
                self._exchange(described(error), error)
            raise
        except BaseException as error:
            # Ctrl-C does not wait for the others to hear it.
            with self.reaching(_STORE_GONE):
                self._post(described(error))
            raise
        else:
            self.exchange()

    def close(self) -> None:
        """Leave the group in good order, when all have come here; at once if one is lost."""
        try:
            if not self._broken:
                self.exchange()
        finally:
            self._close(None)

    def __enter__(self) -> Group:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if value is None:
            self.close()
        else:
            self._close(f"{type(value).__name__}: {value}")

    def _exchange(self, message: dict[str, Any], own_error: Exception | None) -> list[Any]:
        if self._store is None:
            if own_error is not None:
                raise own_error
            return [json.loads(json.dumps(message["value"]))]
        with self.reaching(_STORE_GONE):
            number = self._post(message)
            texts = self._await(number)
            if number > 1:
                # All have posted this one, so all have read the one before.
                self._store.delete_key(self._key(number - 1, self.rank))
        messages = [json.loads(text) for text in texts]
        for rank, found in enumerate(messages):
            if "error" in found:
                raise agreed(rank, found, own_error)
        return [found["value"] for found in messages]

    def _post(self, message: dict[str, Any]) -> int:
        self._number += 1
        if self._store is not None:
            self._store.set(self._key(self._number, self.rank), json.dumps(message))
        return self._number

    def _await(self, number: int) -> list[bytes]:
        keys = [self._key(number, rank) for rank in range(self.size)]
        watch, pause = Watch(self._store, self.timeout), 0.0002
        while missing := [rank for rank, key in enumerate(keys) if not self._store.check([key])]:
            try:
                watch.require_alive(missing)
            except ProcessLostError:
                # It may have posted, and left, since we looked.
                if not self._store.check([keys[rank] for rank in missing]):
                    raise
            time.sleep(pause)
            pause = min(1.5 * pause, _LONGEST_PAUSE)
        return [self._store.get(key) for key in keys]

    @staticmethod
    def _key(number: int, rank: int) -> str:
        return f"exchange/{number}/{rank}"

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
        except ProcessLostError:
            self._broken = True
            raise
        except RuntimeError as error:
            self._broken = True
            raise lost(what, error) from error

    def _process_group(self) -> Any:
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        backend, limit = backend_for(self.exchange(_gpu(self.device))), timedelta(seconds=self.timeout)
        if backend == "nccl":
            self.carrier = self.device
        if dist.is_initialized():
            return dist.new_group(timeout=limit, backend=backend)
        dist.init_process_group(
            backend, store=self._store, rank=self.rank, world_size=self.size, timeout=limit
        )
        self._owns_default = True
        return dist.group.WORLD

    def _close(self, farewell: str | None) -> None:
        if self._store is not None and farewell is not None:
            with suppress(RuntimeError):
                say_farewell(self._store, self.rank, farewell)
        if self._heartbeat is not None:
            self._heartbeat.stop()
        if self._owns_default:
            with suppress(RuntimeError):
                dist.destroy_process_group()
        self._store = self._heartbeat = self.tensors = None


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


def _own_device(device: torch.device) -> torch.device:
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"Groups compute on CPUs or CUDA, not on {device.type!r}. Set device='cpu'.")
    if device.type == "cpu" or device.index is not None:
        return device
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())


def _checked_timeout(value: Any) -> float:
    try:
        seconds = _TIMEOUT if value is None else float(value)
    except (TypeError, ValueError):
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise InputError(f"The time-out of a group ({TIMEOUT_VARIABLE}) is in seconds, got {value!r}.")
    return seconds
