"""What `torchrun` means to a command: who speaks, and how it is stopped."""

from __future__ import annotations

import os
import signal
from typing import Any


def accompanied() -> bool:
    """Say whether this is one of several processes that do one command together."""
    return "RANK" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1"


def follows() -> bool:
    """Say whether this is one of several processes and not the first, which speaks for all."""
    return accompanied() and os.environ["RANK"] != "0"


def heed_launcher() -> None:
    """Under `torchrun`, stop like on Ctrl-C when it ends this process because another one has died."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt
