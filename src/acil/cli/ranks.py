"""What `torchrun` means to a command: who speaks, and how it is stopped."""

from __future__ import annotations

import os
import signal
from typing import Any


def follows() -> bool:
    """Say whether this is one of several processes and not the first, which speaks for all."""
    return os.environ.get("WORLD_SIZE", "1") != "1" and os.environ.get("RANK", "0") != "0"


def heed_launcher() -> None:
    """Under `torchrun`, stop like on Ctrl-C when it ends this process because another one has died."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt
