"""Several processes on this machine, as `torchrun` would start them, for tests."""

import os
import subprocess
import sys
import traceback

import torch
from torch import distributed as dist

from acil.scale import Group
from support.forks import forks

#: Seconds without a sign of life in tests: long enough for a busy machine.
TIMEOUT = 120.0


def together(size, function, *arguments, timeout=TIMEOUT, device="cpu"):
    """Let several processes call ``function(group, *arguments)``.

    Return what each returned or raised, or the signal that killed it.
    """
    context = forks()
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ranks = []
    for rank in range(size):
        environment = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "GLOO_SOCKET_IFNAME": "lo",
            "ACIL_DISTRIBUTED_TIMEOUT": str(timeout),
        }
        receiving, sending = context.Pipe(duplex=False)
        process = context.Process(
            target=_work,
            args=(sending, environment, device, function, arguments),
            name=f"rank {rank}",
            daemon=True,
        )
        process.start()
        sending.close()
        ranks.append((process, receiving))
    return [_result(*rank) for rank in ranks]


def _result(process, connection, seconds=300.0):
    if not connection.poll(seconds):
        process.kill()
        raise AssertionError(f"{process.name} did not end within {seconds} s")
    try:
        (found,) = connection.recv()
    except EOFError:
        process.join(seconds)
        return -process.exitcode
    process.join(seconds)
    return found


def torchrun(size, *arguments):
    """Run a script, or a module with -m, in several processes; return how they ended."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    environment |= {"GLOO_SOCKET_IFNAME": "lo"}
    command = [*launcher, f"--nproc-per-node={size}", *map(str, arguments)]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=300
    )


def _work(connection, environment, device, function, arguments):
    os.environ.update(environment)
    torch.set_num_threads(1)
    try:
        with Group.join(device=device) as group:
            result = function(group, *arguments)
    except Exception as error:
        error.add_note(traceback.format_exc())
        result = error
    connection.send((result,))
    connection.close()
