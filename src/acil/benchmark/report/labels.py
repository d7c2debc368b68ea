"""How methods, settings and numbers are written for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

#: Settings with a short name; all others go by their own.
SHORT_NAMES = {"expansion_size": "d", "gamma": "γ"}
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def differing(variants: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the settings that are not the same in all variants, sorted by name."""
    names = sorted({name for variant in variants for name in variant})
    return [name for name in names if len({repr(variant.get(name, ...)) for variant in variants}) > 1]


def label(method: str, settings: Mapping[str, Any], names: Iterable[str]) -> str:
    """Return the name of a row: the method, and the settings that tell it from its variants.

    Examples
    --------
    >>> label("acil", {"expansion_size": 512, "gamma": 0.1}, ["gamma"])
    'acil (γ = 0.1)'
    """
    parts = [setting(name, settings[name]) for name in names if name in settings]
    return f"{method} ({', '.join(parts)})" if parts else method


def setting(name: str, value: Any) -> str:
    """Return one setting as text."""
    if name == "expansion_size" and value is None:
        return "no expansion"
    return f"{SHORT_NAMES.get(name, name)} = {plain(value)}"


def plain(value: Any) -> str:
    """Return a value of a setting as text.

    Examples
    --------
    >>> plain(0.001), plain(["stage2.5", "stage3.5"]), plain(None)
    ('0.001', 'stage2.5+stage3.5', 'none')
    """
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return "+".join(plain(item) for item in value) or "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {plain(item)}" for name, item in sorted(value.items()))
    return str(value)


def sort_key(value: Any) -> tuple[Any, ...]:
    """Return a key that orders nothing before numbers, numbers by size, and texts last."""
    if value is None:
        return (0, 0, "")
    if isinstance(value, int | float):
        return (1, value, "")
    return (2, 0, plain(value))


def nbytes(value: float, short: bool = False) -> str:
    """Return bytes in decimal units, with three digits, or as few as round numbers need.

    Examples
    --------
    >>> nbytes(0), nbytes(6_144_000), nbytes(536_870_912), nbytes(10_000_000, short=True)
    ('0 B', '6.14 MB', '537 MB', '10 MB')
    """
    for unit in _UNITS:
        # 999.5 would be written as 1000, with three digits.
        if value < 999.5 or unit == _UNITS[-1]:
            break
        value /= 1000
    if short or unit == "B":
        return f"{value:g} {unit}"
    return f"{three_digits(value)} {unit}"


def three_digits(value: float) -> str:
    """Return a number with three digits, never with an exponent.

    Examples
    --------
    >>> three_digits(1.434), three_digits(431.2), three_digits(12345.6), three_digits(0.00123)
    ('1.43', '431', '12346', '0.001')
    """
    if value >= 99.95:
        return f"{value:.0f}"
    if value >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 0.0995 or value == 0 else f"{value:.3f}"


def signed(value: float) -> str:
    """Return a difference with its sign and two decimals.

    Examples
    --------
    >>> signed(0.123), signed(-0.25), signed(-0.001)
    ('+0.12', '−0.25', '0.00')
    """
    text = f"{value:+.2f}"
    return "0.00" if text in ("+0.00", "-0.00") else text.replace("-", "−")
