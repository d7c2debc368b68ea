"""Damaged and hostile model files, read by a process of its own, and servers killed while they save.

Run as a program, it is that process: it reads a path a line and answers each with what became of it.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import select
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.attackers import Tally, mutated, photograph, upload

#: Reading one file takes longer only if it hangs.
HUNG_SECONDS = 30.0
_EXAMPLES = 5
_HOSTILE: list[Any] = [
    None,
    True,
    -1,
    0,
    2**63,
    10**400,
    1e308,
    5e-324,
    "",
    "\0",
    "\ud800",
    "\x1b[31mred",
    "a\nb",
    "../../etc/passwd",
    "/dev/zero",
    "/dev/stdin",
    "onnx:/dev/random",
    "hpu",
    "privateuseone",
    "meta",
    "x" * 1_000_000,
    [],
    [[]] * 1000,
    {},
    {"a": {"b": [1]}},
]


class Reader:
    """The process that reads files."""

    def __init__(self) -> None:
        self.peak = 0
        self._start()

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.attackfiles"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._answer(120)
        self.base = memory(self._process.pid)

    def read(self, path: Path) -> dict[str, str] | None:
        """Return what became of a file; None if there is no answer in time."""
        with contextlib.suppress(BrokenPipeError):
            print(path, file=self._process.stdin, flush=True)
        found = self._answer(HUNG_SECONDS)
        with contextlib.suppress(OSError):
            self.peak = max(self.peak, memory(self._process.pid, "VmHWM") - self.base)
        if found is None:
            code = self._process.poll()
            self.close()
            self._start()
            return (
                None if code is None else {"outcome": "wrong", "text": f"the process ended with {code}"}
            )
        return found

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()

    def _answer(self, seconds: float) -> dict[str, str] | None:
        answers = self._process.stdout
        if answers is None:
            return None
        ready, _, _ = select.select([answers], [], [], seconds)
        line = answers.readline() if ready else ""
        return json.loads(line) if line else None


def memory(pid: int, what: str = "VmRSS") -> int:
    """Return the memory of a process in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(what))


def attack_files(model: Path, chance: random.Random, seconds: float) -> dict[str, tuple[Tally, int]]:
    """Read damaged files and hostile headers by turns; return tallies, and the memory that it took."""
    content = model.read_bytes()
    tallies = {"files": Tally(), "headers": Tally()}
    reader = Reader()
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.acil"
        while time.monotonic() < end:
            for name, tally in tallies.items():
                made, what = mutated(content, chance), "mutated"
                if name == "headers":
                    made, what = hostile_header(content, chance)
                path.write_bytes(made)
                found = reader.read(path)
                tally.tried += 1
                if found is None:
                    tally.hung += 1
                elif found["outcome"] != "accepted":
                    setattr(tally, found["outcome"], getattr(tally, found["outcome"]) + 1)
                if (found is None or found["outcome"] == "wrong") and len(tally.examples) < _EXAMPLES:
                    tally.examples.append(f"{what}: {'hung' if found is None else found['text']}")
    reader.close()
    return {name: (tally, reader.peak) for name, tally in tallies.items()}


def hostile_header(content: bytes, chance: random.Random) -> tuple[bytes, str]:
    """Return a model file with a hostile value in its header, and what was changed."""
    length = int.from_bytes(content[:8], "little")
    outer = json.loads(content[8 : 8 + length])
    header = json.loads(outer["__metadata__"]["acil"])
    place: Any = header
    while True:
        key = chance.choice(list(place) if isinstance(place, dict) else range(len(place)))
        if not isinstance(place[key], dict | list) or not place[key] or chance.random() < 0.2:
            break
        place = place[key]
    place[key] = chance.choice(_HOSTILE)
    text = json.dumps(header)
    outer["__metadata__"] = {"acil": text, "checksum": str(zlib.crc32(text.encode()))}
    made = json.dumps(outer).encode()
    made += b" " * (-len(made) % 8)
    return len(made).to_bytes(8, "little") + made + content[
        8 + length :
    ], f"{key!r} = {place[key]!r:.60}"


def attack_by_killing(
    model: Path, serve: Callable[[Path], Any], token: str, chance: random.Random, seconds: float
) -> Tally:
    """Kill servers while they save; the file must hold what was answered, or one change more.

    Parameters
    ----------
    model : Path
    serve : callable
        Returns a context with the process and the port of a new server of a model.
    token : str
    chance : Random
    seconds : float
    """
    from acil.core.files import describe

    # Images that the model has not learnt yet.
    tally, end, number = Tally(), time.monotonic() + seconds, 1000
    reader, extra = Reader(), f"Authorization: Bearer {token}\r\n"
    # At least one, however little time there is.
    while not tally.tried or time.monotonic() < end:
        before, answered = describe(model)["n_samples"], 0
        with serve(model) as (process, port):
            killed_at = time.monotonic() + chance.uniform(0.2, 1.5)
            while True:
                number += 1
                with socket.create_connection(("127.0.0.1", port), HUNG_SECONDS) as line:
                    line.sendall(upload("/classes/red", [photograph("PNG", 64, number)], extra))
                    if time.monotonic() > killed_at:
                        time.sleep(chance.uniform(0, 0.05))
                        process.kill()
                        break
                    answered += line.recv(100).split()[1] == b"200"
        tally.tried += 1
        found, learnt = reader.read(model), describe(model)["n_samples"] - before
        if found is None:
            tally.hung += 1
        elif found["outcome"] != "accepted" or learnt not in (answered, answered + 1):
            tally.wrong += 1
            tally.examples.append(f"{learnt} learnt, {answered} answered: {found['text']}")
    reader.close()
    return tally


def _outcome(path: str) -> dict[str, str]:
    from typer.testing import CliRunner

    from acil import ImageClassifier, load
    from acil.cli import app
    from acil.errors import ACILError

    results = []
    for use in (load, lambda path: ImageClassifier.load(path).snapshot.head):
        try:
            head = use(path)
            head.predict(np.zeros((1, head.n_features_in_), dtype=np.float32))
            results.append("accepted")
        except ACILError:
            results.append("refused")
        except Exception:
            return {"outcome": "wrong", "text": traceback.format_exc(limit=-2)}
    shown = CliRunner().invoke(app, ["inspect", path])
    if shown.exception is not None and not isinstance(shown.exception, SystemExit):
        return {"outcome": "wrong", "text": f"inspect: {shown.exception!r:.200}"}
    if any(not letter.isprintable() and letter not in "\n\t" for letter in shown.output):
        return {"outcome": "wrong", "text": f"inspect prints control characters: {shown.output!r:.200}"}
    return {"outcome": "refused" if "refused" in results else "accepted", "text": ""}


def main() -> None:
    """Answer each path of the standard input."""
    import acil.cli  # noqa: F401

    out, sys.stdout = sys.stdout, io.StringIO()
    print(json.dumps({"outcome": "ready"}), file=out, flush=True)
    for line in sys.stdin:
        print(json.dumps(_outcome(line.strip())), file=out, flush=True)


if __name__ == "__main__":
    main()
