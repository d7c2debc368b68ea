"""Every figure of docs/performance.md, and those of the README about speed, is in a stored file."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "performance.md").read_text(encoding="utf-8")
README = (DOCS.parent / "README.md").read_text(encoding="utf-8")
#: Unit → what a stored number, in seconds, bytes or none, is multiplied by.
UNITS = {"ms": 1e3, "min": 1 / 60, "s": 1, "GiB": 1, "MiB": 1, "GB": 1, "MB": 1, "%": 1, "times": 1}
UNITS |= {"images/s": 1, "images a second": 1, "inputs a second": 1, "GFLOP/s": 1, "GB/s": 1}
#: Those that say how fast something is.
TIMES = {"ms", "s", "min", "times", "images/s"}
NUMBER = r"\d[\d,]*(?:\.\d+)?"
#: A number with its unit, or the first of two: "0.3 to 0.4 s", "1 and 2 s".
FIGURE = re.compile(
    rf"(?<![\w.,])({NUMBER})(?=(?: (?:to|and|or) {NUMBER})? ?"
    rf"({'|'.join(map(re.escape, UNITS))})(?![\w/]))"
)


def leaves(value: Any) -> Iterator[float]:
    """Yield the numbers of nested JSON."""
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from leaves(item)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield float(value)


def handwritten(text: str) -> str:
    """Return a text without its generated parts, code and titles."""
    text = re.sub(r"^<!-- generated: .*?^<!-- end: ", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"^```.*?^```|`[^`]*`|^#.*?$", "", text, flags=re.MULTILINE | re.DOTALL)


def figures(text: str) -> list[tuple[str, float]]:
    """Return the numbers with a unit, and those in cells of tables, each with the factor of its unit."""
    text = handwritten(text)
    cells = re.findall(r"^\|(.*)\|$", text, flags=re.MULTILINE)
    numbers = [number for row in cells for number in re.findall(NUMBER, row)]
    prose = re.sub(r"^\|.*$", "", text, flags=re.MULTILINE)
    found = FIGURE.findall(re.sub(r"\s+", " ", prose))
    return [*((number, 1) for number in numbers), *((number, UNITS[unit]) for number, unit in found)]


def files(text: str) -> list[Any]:
    """Return the stored files that a text links to."""
    names = re.findall(r"\]\((performance/[\w-]+\.json)\)", text)
    return [json.loads((DOCS / name).read_text(encoding="utf-8")) for name in names]


def unknown(text: str, stored: Any) -> list[str]:
    """Return the figures of a text that no stored number rounds to."""
    known = list(leaves(stored))

    def is_known(number: str, factor: float) -> bool:
        value, digits = float(number.replace(",", "")), len(number.partition(".")[2])
        return any(round(factor * leaf, digits) == value for leaf in known)

    return [number for number, factor in figures(text) if not is_known(number, factor)]


SECTIONS = re.split(r"^(?=## )", PAGE, flags=re.MULTILINE)


@pytest.mark.parametrize("section", SECTIONS, ids=lambda text: text.partition("\n")[0].strip("# "))
def test_figures_beside_the_generated_tables_are_in_a_file_that_their_section_links_to(section):
    assert unknown(section, files(section)) == []


def test_figures_of_the_readme_about_speed_are_in_the_files_of_the_page():
    prose = re.sub(r"^\|.*$", "", README, flags=re.MULTILINE)
    speeds = [
        f"{number} {unit}"
        for number, unit in FIGURE.findall(re.sub(r"\s+", " ", prose))
        if unit in TIMES
    ]
    assert speeds
    assert unknown(", ".join(speeds), files(PAGE)) == []


def test_a_figure_without_a_record_is_found():
    prose = "Takes 0.3 to 0.42 s, 7.2 times\nas long, 12 ms (`d = 8 s`)."
    text = f"{prose}\n\n| a | b |\n| --- | --- |\n| x | 5.0 |\n"
    assert [number for number, _ in figures(text)] == ["5.0", "0.3", "0.42", "7.2", "12"]
    stored = {"seconds": [0.3, 0.0119], "ratio": 7.23, "whole": True}
    assert unknown(text, stored) == ["5.0", "0.42"]


def test_every_generated_part_names_its_measurement_and_says_where_and_when():
    parts = re.findall(
        r"^<!-- generated: (\w+) -->(.*?)^<!-- end: ", PAGE, flags=re.MULTILINE | re.DOTALL
    )
    assert len(parts) == 10
    for name, text in parts:
        assert re.search(rf"^\*`{name}`: .*, \d{{4}}-\d\d-\d\d\*$", text, flags=re.MULTILINE)
