"""Tables and folders of texts: what is taken is told, and what is wrong is told with its line."""

import csv
import gzip
import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acil.encoders.images.embedder import UnreadableError
from acil.encoders.text import clean_text
from acil.encoders.text.tables import is_text_table, read_texts
from acil.errors import InputError, MissingExtraError

ROWS = [("my card is gone", "card"), ('it said "no", twice', "cash"), ("two\nlines", "card")]
TEXTS, LABELS = [text for text, _ in ROWS], [label for _, label in ROWS]


def write_csv(path, rows, names=("text", "label"), delimiter=","):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(names)
        writer.writerows(rows)
    return path


def write_json(path, rows):
    path.write_text("".join(json.dumps({"text": t, "label": y}) + "\n" for t, y in rows))
    return path


def write_folders(path, rows):
    for number, (text, label) in enumerate(rows):
        (path / label).mkdir(parents=True, exist_ok=True)
        (path / label / f"{number}.txt").write_text(text, encoding="utf-8")
    return path


def write_parquet(path, rows):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    pandas.DataFrame(rows, columns=["text", "label"]).to_parquet(path)
    return path


WRITERS = {
    "t.csv": write_csv,
    "t.tsv": lambda path, rows: write_csv(path, rows, delimiter="\t"),
    "t.jsonl": write_json,
    "t.parquet": write_parquet,
    "folder": write_folders,
}


@pytest.mark.parametrize("name", WRITERS)
def test_each_format_gives_back_what_was_written(name, tmp_path):
    path = WRITERS[name](tmp_path / name, ROWS)
    assert is_text_table(path)
    found = read_texts(path)
    assert found.labels is not None
    assert sorted(zip(found.texts, found.labels, strict=True)) == sorted(ROWS)
    assert found.bad == []
    assert f"{name}: 3 texts" in found.taken
    assert len(found.places) == 3


@given(
    st.lists(
        st.tuples(
            st.text(st.characters(codec="utf-8"), max_size=30).filter(str.strip), st.sampled_from("ab")
        ),
        min_size=1,
        max_size=8,
    )
)
def test_csv_and_json_lines_say_the_same_of_any_text(tmp_path_factory, rows):
    folder, expected, bad = tmp_path_factory.getbasetemp(), [], 0
    for text, _ in rows:
        try:
            expected.append(clean_text(text))
        except InputError:
            bad += 1
    for path in (write_csv(folder / "t.csv", rows), write_json(folder / "t.jsonl", rows)):
        if not expected:
            with pytest.raises(UnreadableError):
                read_texts(path, skip_bad=True)
            continue
        found = read_texts(path, skip_bad=True)
        # The csv module itself changes ends of lines inside of cells.
        plain = [" ".join(text.split()) for text in found.texts]
        assert plain == [" ".join(text.split()) for text in expected]
        assert len(found.bad) == bad


def test_columns_are_named_or_found_by_name_and_told(tmp_path):
    path = write_csv(tmp_path / "t.csv", [("1", "hello there", "a")], ("id", "Text", "label "))
    found = read_texts(path)
    assert (found.texts, found.labels) == (["hello there"], ["a"])
    assert "column 'Text'" in found.taken
    other = write_csv(tmp_path / "o.csv", [("body", "a", "b")], ("mail", "text", "topic"))
    found = read_texts(other, "mail", "topic")
    assert (found.texts, found.labels) == (["body"], ["b"])
    assert "'mail'" in found.taken
    assert "'topic'" in found.taken
    assert read_texts(other).labels is None
    assert "without labels" in read_texts(other).taken


@pytest.mark.parametrize(
    ("names", "arguments", "message"),
    [
        (("a", "b"), (), "no column 'text'; its columns are 'a', 'b'"),
        (("text;label",), (), "separated by ';'"),
        (("text", "b"), (None, "topic"), "no column 'topic'"),
        (("text", "TEXT"), ("Text",), "several columns"),
    ],
)
def test_missing_and_doubtful_columns_are_told(tmp_path, names, arguments, message):
    path = write_csv(tmp_path / "t.csv", [["x"] * len(names)], names)
    with pytest.raises(InputError, match=message):
        read_texts(path, *arguments)


BAD_LINES = {
    "empty": (b",card\n", "it is empty"),
    "blank": (b'"  \t ",card\n', "it is empty"),
    "zero width": ("\u200b,card\n".encode(), "no character that can be seen"),
    "not utf-8": (b"caf\xe9,card\n", "not UTF-8"),
    "label not utf-8": (b"coffee,caf\xe9\n", "not UTF-8"),
    "no label": (b"hello,\n", "no label"),
    "too many cells": (b"a, b,card\n", "3 cells"),
    "too few cells": (b"hello\n", "1 cells"),
    "quotation marks": (b'"a" b,card\n', "quotation marks"),
    "right-to-left class": ("hello,ca\u202erd\n".encode(), "cannot be printed"),
    "path as a class": (b"hello,../card\n", "reads like a path"),
    "long class": (b"hello," + b"x" * 300 + b"\n", "characters, more than"),
    "unknown": (b"hello,unknown\n", "unknown"),
}


@pytest.mark.parametrize("name", BAD_LINES)
def test_a_bad_line_in_the_middle_is_told_with_its_number(name, tmp_path):
    line, message = BAD_LINES[name]
    path = tmp_path / "t.csv"
    path.write_bytes(b'text,label\nfirst,a\n"two\nlines",a\n' + line + b"last,b\n")
    with pytest.raises(UnreadableError, match=f"Line 5: .*{message}") as caught:
        read_texts(path)
    assert caught.value.others == 3
    found = read_texts(path, skip_bad=True)
    assert found.texts == ["first", "two\nlines", "last"]
    assert found.places == [2, 3, 6]
    ((place, reason),) = found.bad
    assert place == 5
    assert message in reason


def test_an_open_quotation_mark_says_how_far_it_reaches(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text('text,label\none,a\n"two,a\nthree,b\nfour,b\n')
    with pytest.raises(UnreadableError, match=r"Line 3: .*reaches to line 5"):
        read_texts(path)
    assert read_texts(path, skip_bad=True).texts == ["one"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "no JSON"),
        (b"[1, 2]", "is no object"),
        (b'{"text": 3, "label": "a"}', "of type int"),
        (b'{"label": "a"}', "no text"),
        (b'{"text": "x"}', "no label"),
        (b'{"text": "x", "label": true}', "of type bool"),
        (b'{"text": "\\ud800", "label": "a"}', "surrogates"),
        (b'{"text": "caf\xe9", "label": "a"}', "not UTF-8"),
        (b"[" * 100_000, "no JSON"),
    ],
)
def test_bad_json_lines_are_told(tmp_path, line, message):
    path = tmp_path / "t.jsonl"
    path.write_bytes(b'{"text": "one", "label": 7}\n\n' + line + b'\n{"text": "two", "label": "b"}')
    with pytest.raises(UnreadableError, match=f"Line 3: .*{message}"):
        read_texts(path)
    found = read_texts(path, skip_bad=True)
    assert (found.texts, found.labels, found.places) == (["one", "two"], ["7", "b"], [1, 4])


def test_controls_and_marks_in_texts_follow_the_rule(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes("\ufefftext,label\r\na\0b\x07 cafe\u0301,cafe\u0301\r\n\u200fשלום,b\r\n".encode())
    found = read_texts(path)
    assert found.texts == ["a b  caf\u00e9", "\u200fשלום"]
    assert found.labels == ["caf\u00e9", "b"]


def test_a_text_of_ten_million_characters_is_read(tmp_path):
    long = "word " * 2_000_000
    limit = csv.field_size_limit()
    for name in ("t.csv", "t.jsonl", "folder"):
        path = WRITERS[name](tmp_path / name, [(long, "a"), ("short", "b")])
        assert sorted(map(len, read_texts(path).texts)) == [5, len(long) - 1]
    assert csv.field_size_limit() == limit


def test_folders_have_their_own_rules(tmp_path, caplog):
    caplog.set_level("WARNING", "acil.encoders.text.tables")  # whatever tests before have set
    path = write_folders(tmp_path / "f", ROWS)
    (path / "README.txt").write_text("about this folder")
    (path / ".hidden").mkdir()
    (path / "empty").mkdir()
    assert sorted(read_texts(path).texts) == sorted(TEXTS)
    assert "1 .txt files beside" in caplog.text
    (path / "card" / "bad.txt").write_bytes(b"\xff\xff")
    with pytest.raises(UnreadableError, match=r"bad\.txt: .*UTF-8"):
        read_texts(path)
    assert len(read_texts(path, skip_bad=True).texts) == 3
    with pytest.raises(InputError, match="no columns"):
        read_texts(path, "text")
    flat = tmp_path / "flat"
    flat.mkdir()
    (flat / "a.txt").write_text("hello")
    assert is_text_table(flat)
    assert (read_texts(flat).texts, read_texts(flat).labels) == (["hello"], None)


def test_files_that_people_have_instead_of_tables_are_told_apart(tmp_path):
    rows = [("my card", "card"), ("the rain", "weather")]
    lines = "text,label\rmy card,card\rthe rain,weather\r"
    (tmp_path / "old-mac.csv").write_bytes(lines.encode())
    assert is_text_table(tmp_path / "old-mac.csv")
    assert read_texts(tmp_path / "old-mac.csv").texts == [text for text, _ in rows]
    for name, words in (("t.csv.gz", "is compressed. Unpack"), ("t.XLSX", "is a spreadsheet. Save it")):
        (tmp_path / name).write_bytes(gzip.compress(b"text,label\n"))
        with pytest.raises(InputError, match=words):
            read_texts(tmp_path / name)
    (tmp_path / "gz.csv").write_bytes(gzip.compress(b"text,label\n"))
    with pytest.raises(InputError, match=r"first line of .* not UTF-8"):
        read_texts(tmp_path / "gz.csv")


def test_folders_of_images_and_tables_of_features_are_no_texts(tmp_path):
    images = tmp_path / "images" / "cat"
    images.mkdir(parents=True)
    (images / "a.jpg").write_bytes(b"")
    (images / "a.txt").write_text("a caption")
    assert not is_text_table(tmp_path / "images")
    for number, first in enumerate(["path,label", "x,y,label", "features,text", "", "a,b\ntext,c"]):
        path = tmp_path / f"{number}.csv"
        path.write_text(f"{first}\n")
        assert not is_text_table(path)
    assert not is_text_table(tmp_path / "missing.csv")
    assert not is_text_table(tmp_path / "missing")
    (tmp_path / "nothing").mkdir()
    assert not is_text_table(tmp_path / "nothing")
    assert not is_text_table(tmp_path / "model.acil")


def test_parquet_takes_texts_alone(tmp_path):
    pandas, path = pytest.importorskip("pandas"), tmp_path / "t.parquet"
    pytest.importorskip("pyarrow")
    frame = pandas.DataFrame({"text": ["a b", None, "c"], "label": [1, 2, 3], "x": [0.5] * 3})
    frame.to_parquet(path)
    with pytest.raises(UnreadableError, match="Row 2"):
        read_texts(path)
    found = read_texts(path, skip_bad=True)
    assert (found.texts, found.labels) == (["a b", "c"], ["1", "3"])
    frame.assign(embedding=1.0).to_parquet(path)
    assert not is_text_table(path)
    path.write_bytes(b"PAR1 damaged")
    with pytest.raises(InputError, match="as parquet"):
        read_texts(path)


def test_without_its_package_parquet_is_told(tmp_path, monkeypatch):
    (tmp_path / "t.parquet").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match="pip install pandas pyarrow"):
        read_texts(tmp_path / "t.parquet")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv", b"", "no first line with the names of its columns"),
        ("t.csv", b"text,label\n", "has no texts"),
        ("t.jsonl", b"\n\n", "has no texts"),
        ("t.jsonl", b"{\n[]\n", r"2 of 2 texts .* Line 1: it is no JSON.* Line 2: it is no object"),
        ("t.csv", "text,label\n".encode("utf-16"), "UTF-16"),
        ("t.csv", b'"text\n', "first line"),
        ("t.docx", b"PK", "no table of texts"),
        ("t.docx", b"hello", "no table of texts"),
    ],
)
def test_files_that_are_no_tables_are_told(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_texts(tmp_path / name)
    with pytest.raises(InputError, match="no file"):
        read_texts(tmp_path / "missing.csv")
