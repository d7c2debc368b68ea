"""Receipts of forgetting: which model file became which, and nothing about the samples."""

from __future__ import annotations

import hashlib
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from acil import __version__
from acil.core.files.writing import cannot_write


def file_hash(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def receipts_file(path: str | os.PathLike[str]) -> Path:
    """Return the file of receipts beside a model file, or raise if it cannot be written."""
    file = Path(f"{os.fspath(path)}.receipts.jsonl")
    try:
        with file.open("a", encoding="utf-8"):
            return file
    except OSError as error:
        raise cannot_write(file, error) from error


def write_receipt(
    path: str | os.PathLike[str], before: str, n_samples: int, n_classes: int
) -> tuple[Path, dict[str, Any]]:
    """Append a receipt to ``MODEL.receipts.jsonl`` beside a model file; return file and receipt.

    ``before`` is the `file_hash` of the model that had the samples.
    """
    file = receipts_file(path)
    receipt = {
        "forgotten_samples": n_samples,
        "forgotten_classes": n_classes,
        "model_before": f"sha256:{before}",
        "model_after": f"sha256:{file_hash(path)}",
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "acil": __version__,
    }
    with file.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(receipt) + "\n")
    return file, receipt
