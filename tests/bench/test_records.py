"""Records survive what happens to files: killed writers, full disks, several processes, damage."""

import errno
import json
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acil.bench import records as records_module
from acil.bench.records import Records, finished, key
from acil.errors import ACILError, InputError
from support.forks import called
from support.synthetic_records import ENVIRONMENT, identity, phase_record, summary_record

N_PROCESSES = 4
N_EACH = 25


@pytest.fixture
def records(tmp_path):
    return Records(tmp_path / "records.jsonl")


def test_records_come_back_in_order_with_unknown_keys(records):
    written = [ENVIRONMENT, phase_record(note={"a": [1, None]}), summary_record(gamma_relative=0.5)]
    for record in written:
        records.append(record)
    assert records.read() == written
    assert records.path.read_bytes().count(b"\n") == 3


def test_no_file_means_no_records_and_a_missing_directory_is_told(tmp_path):
    assert Records(tmp_path / "records.jsonl").read() == []
    with pytest.raises(InputError, match="directory"):
        Records(tmp_path / "nowhere" / "records.jsonl").append(ENVIRONMENT)


@given(kept=st.integers(0, 200))
def test_cut_last_line_is_ignored_and_repaired(tmp_path_factory, kept):
    records = Records(tmp_path_factory.mktemp("run") / "records.jsonl")
    records.append(ENVIRONMENT)
    whole = records.path.read_bytes()
    line = json.dumps(summary_record()).encode()
    records.path.write_bytes(whole + line[: min(kept, len(line) - 1)])
    assert records.read() == [ENVIRONMENT]
    records.append(phase_record())
    assert records.read() == [ENVIRONMENT, phase_record()]
    assert records.path.read_bytes().startswith(whole)


def test_last_line_that_lacks_only_its_newline_is_kept(records):
    records.path.write_text(json.dumps(ENVIRONMENT))
    assert records.read() == [ENVIRONMENT]
    records.append(summary_record())
    assert records.read() == [ENVIRONMENT, summary_record()]


@pytest.mark.parametrize(
    "damage",
    [b"{half", b"\xff\xfe", b"[1]", b'{"kind": "poem"}', b'{"kind": NaN}', b"[" * 100_000, b"\0\0"],
)
def test_damage_elsewhere_is_refused_with_file_and_line(records, damage):
    records.append(ENVIRONMENT)
    with records.path.open("ab") as file:
        file.write(damage + b"\n")
    records.append(summary_record())
    before = records.path.read_bytes()
    with pytest.raises(InputError, match="line 2"):
        records.read()
    assert records.path.read_bytes() == before


def test_blank_lines_do_no_harm(records):
    records.append(ENVIRONMENT)
    records.path.write_bytes(b"\n" + records.path.read_bytes() + b"\n")
    assert records.read() == [ENVIRONMENT]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (
            {"kind": "poem"},
            "kind must be one of environment, phase, failure, choice, summary. Got 'poem'",
        ),
        ({}, "Got None"),
        ([1], "must be an object"),
        ({**summary_record(), "average_accuracy": 100.1}, "from 0 to 100. Got 100.1"),
        ({**summary_record(), "average_accuracy": float("nan")}, "from 0 to 100. Got nan"),
        ({**summary_record(), "last_accuracy": True}, "Got True"),
        ({**summary_record(), "forgetting": -101}, "from -100 to 100"),
        ({**summary_record(), "condition": float("inf")}, "finite number"),
        ({**summary_record(), "joint_difference": "1e-9"}, "Got '1e-9'"),
        ({**summary_record(), "seed": -1}, "seed of this summary record"),
        ({**summary_record(), "seed": 1.0}, "whole number"),
        ({**summary_record(), "phases": 0}, "at least 1"),
        ({**summary_record(), "method": " "}, "not empty"),
        ({**summary_record(), "settings": [1]}, "object"),
        ({**summary_record(), "settings": {"gamma": float("nan")}}, "cannot be written as JSON"),
        ({**summary_record(), "extra": object()}, "cannot be written as JSON"),
        (phase_record(phase=6), "at most phases, 5. Got 6"),
        ({**phase_record(), "accuracy_by_origin": [1.0, 2.0]}, "at most 1 entries"),
        ({**phase_record(), "accuracy_by_origin": []}, "list of percentages"),
        ({**phase_record(), "accuracy_by_origin": [101]}, "list of percentages"),
        ({**phase_record(), "memory": {"samples": 1}}, "samples, statistics, weights"),
        ({**phase_record(), "seconds": -1}, "seconds"),
        ({k: v for k, v in phase_record().items() if k != "accuracy"}, "lacks accuracy"),
        ({k: v for k, v in ENVIRONMENT.items() if k != "device"}, "lacks device"),
    ],
)
def test_bad_record_is_refused_and_nothing_written(records, record, message):
    with pytest.raises(InputError) as caught:
        records.append(record)
    assert message in str(caught.value)
    assert not records.path.exists()


@pytest.mark.parametrize("name", ["base_accuracy", "peak_rss"])
def test_what_may_be_missing_may_be_null(records, name):
    records.append({**phase_record(), name: None, "accuracy_by_origin": [None]})
    records.append({**summary_record(), "forgetting": None, "condition": None})
    assert len(records.read()) == 2


def append_at_once(path, processes, each):
    """Append from several processes; all have started before one begins."""
    read_end, write_end = os.pipe()
    for first in range(0, processes * each, each):
        if os.fork() == 0:
            os.close(write_end)
            os.read(read_end, 1)
            for seed in range(first, first + each):
                Records(path).append(summary_record(seed=seed, note="x" * 5000))
            os._exit(0)
    os.close(write_end)
    return [os.wait()[1] for _ in range(processes)]


def test_processes_that_append_at_once_lose_nothing(records):
    assert called(append_at_once, records.path, N_PROCESSES, N_EACH) == [0] * N_PROCESSES
    seeds = [record["seed"] for record in records.read()]
    assert sorted(seeds) == list(range(N_PROCESSES * N_EACH))


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_failing_disk_leaves_the_file_as_it_was(records, monkeypatch, call):
    def fail(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    records.append(ENVIRONMENT)
    with monkeypatch.context() as patched:
        patched.setattr(records_module.os, call, fail)
        with pytest.raises(ACILError, match="No space"):
            records.append(summary_record())
    assert records.read() == [ENVIRONMENT]
    records.append(summary_record())
    assert records.read() == [ENVIRONMENT, summary_record()]


def test_short_writes_are_completed(records, monkeypatch):
    write = os.write
    monkeypatch.setattr(records_module.os, "write", lambda fd, data: write(fd, data[:7]))
    records.append(summary_record())
    assert records.read() == [summary_record()]


def test_interrupt_in_the_middle_of_a_line_leaves_the_file_as_it_was(records, monkeypatch):
    write, calls = os.write, []

    def interrupted(descriptor, data):
        calls.append(data)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return write(descriptor, data[:7])

    records.append(ENVIRONMENT)
    with monkeypatch.context() as patched:
        patched.setattr(records_module.os, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            records.append(summary_record())
    assert records.path.read_bytes().endswith(b"}\n")
    assert records.read() == [ENVIRONMENT]


def test_directory_in_the_place_of_the_file_is_a_clear_error(tmp_path):
    with pytest.raises(InputError, match="Cannot read"):
        Records(tmp_path).read()
    with pytest.raises(ACILError, match="Cannot write"):
        Records(tmp_path).append(ENVIRONMENT)


def test_key_is_the_same_before_and_after_writing(records):
    record = summary_record(settings={"b": 1.0, "a": ("x", "y"), "c": {"d": 2.0}})
    records.append(record)
    (read,) = records.read()
    assert key(read) == key(record)
    assert key(record) == key({**record, "settings": {"a": ["x", "y"], "c": {"d": 2}, "b": 1}})
    assert hash(key(record)) == hash(key(read))


@pytest.mark.parametrize("name", [*identity()])
def test_key_differs_in_each_part_of_the_identity(name):
    other = {"seed": 1, "phases": 10, "settings": {"expansion_size": 8192, "gamma": 0.2}}
    assert key(summary_record(**{name: other.get(name, "other")})) != key(summary_record())
    assert key(summary_record()) == key(phase_record())


def test_finished_are_the_runs_with_a_summary():
    done = finished([ENVIRONMENT, phase_record(seed=1), phase_record(), summary_record()])
    assert done == {key(summary_record())}


def test_the_page_about_records_has_every_key_with_its_rule():
    page = (Path(__file__).parents[2] / "docs" / "reference" / "records.md").read_text()
    _, *sections = re.split(r"^## ", page, flags=re.MULTILINE)
    found = {}
    for section in sections:
        lines = [line for line in section.splitlines() if line.startswith("| `")]
        cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
        found[section.splitlines()[0].strip("`")] = {row[0].strip("`"): row[-2] for row in cells}
    identity_keys, optional = found.pop("What tells runs apart"), found.pop("Where there is one")

    def words(rules):
        return {name: rule[1] for name, rule in rules.items()}

    assert identity_keys == words(records_module.IDENTITY)
    assert optional == words(records_module.OPTIONAL)
    assert set(found) == set(records_module.REQUIRED)
    for kind, rules in records_module.REQUIRED.items():
        own = words(rules).items() - (set() if kind == "choice" else identity_keys.items())
        assert found[kind] == dict(own), kind
