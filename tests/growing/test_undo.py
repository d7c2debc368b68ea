"""Undo: earlier states come back bit for bit, within limits, whatever happens in between."""

import pytest

from acil import ACILClassifier, save
from acil.core.files import locked
from acil.core.files.header import require_whole
from acil.core.files.writing import replacing
from acil.errors import InputError, ModelFileError
from acil.growing import undo
from acil.growing.history import keep_state, kept_states, remove_states


@pytest.fixture
def model(tmp_path):
    """A file with the number of a state; the files need not be models but for their check."""
    path = tmp_path / "m.acil"
    path.write_text("0")
    return path


@pytest.fixture(autouse=True)
def checked(monkeypatch):
    """The states that are looked at before they come back."""
    seen = []
    monkeypatch.setattr(undo, "require_whole", lambda path: seen.append(path.read_text()))
    return seen


def change(path, text):
    keep_state(path)
    with replacing(path) as draft:
        draft.write_text(text)


def test_the_last_ten_states_come_back_in_turn(model, checked):
    for number in range(1, 13):
        change(model, str(number))
    for number in range(11, 1, -1):
        undo.undo(model)
        assert model.read_text() == str(number)
    assert checked == [str(number) for number in range(11, 1, -1)]
    assert kept_states(model) == []


def test_states_take_no_more_than_the_limit_of_bytes(model, monkeypatch):
    monkeypatch.setattr(undo, "MAX_BYTES", 8)
    for number in range(1, 5):
        change(model, str(number) * 3)
    assert [state.read_text() for state in kept_states(model)] == ["222", "333"]


@pytest.mark.parametrize("links", [True, False])
def test_a_file_system_without_hard_links_will_do(model, monkeypatch, links):
    def refuse(self, target):
        raise OSError("no links here")

    if not links:
        monkeypatch.setattr("pathlib.Path.hardlink_to", refuse)
    change(model, "1")
    undo.undo(model)
    assert model.read_text() == "0"


def test_a_change_that_failed_leaves_nothing_to_undo(model):
    change(model, "1")
    keep_state(model)
    assert [state.read_text() for state in kept_states(model)] == ["0"]
    change(model, "2")
    undo.undo(model)
    assert model.read_text() == "1"
    # Nor later, when the file is another one than that of the change that failed
    undo.undo(model)
    assert model.read_text() == "0"
    assert kept_states(model) == []


def test_states_that_are_removed_while_they_are_listed_are_left_out(model, monkeypatch):
    change(model, "1")
    change(model, "2")
    first, second = kept_states(model)
    listed = undo._states(model)
    first.unlink()
    monkeypatch.setattr(undo, "_states", lambda path: listed)
    assert kept_states(model) == [second]


def test_an_undo_that_was_cut_short_is_not_done_twice(model):
    change(model, "1")
    change(model, "2")
    with replacing(model) as draft:
        draft.unlink()
        draft.hardlink_to(kept_states(model)[-1])
    # The process ends here, before it removes the state.
    undo.undo(model)
    assert model.read_text() == "0"


def test_a_damaged_state_does_not_replace_the_model(model, monkeypatch):
    monkeypatch.setattr(undo, "require_whole", require_whole)
    save(ACILClassifier(scores="ridge", expansion_size=8).fit([[0.0], [1.0]], [0, 1]), model)
    content = model.read_bytes()
    change(model, "1")
    (state,) = kept_states(model)
    state.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))  # its header is whole
    with pytest.raises(ModelFileError, match="checksum"):
        undo.undo(model)
    assert model.read_text() == "1"
    state.write_bytes(content)
    undo.undo(model)
    assert model.read_bytes() == content


def test_a_removed_model_comes_back_but_a_new_one_has_no_past(model):
    change(model, "1")
    model.unlink()
    with locked(model):
        undo.undo(model)
    assert model.read_text() == "0"
    change(model, "1")
    model.unlink()
    change(model, "2")
    assert kept_states(model) == []


def test_states_are_those_behind_a_link(model):
    link = model.with_name("link.acil")
    link.symlink_to(model)
    change(link, "1")
    assert len(kept_states(model)) == 1
    remove_states(link)
    assert kept_states(model) == []
    assert link.is_symlink()


def test_what_cannot_be_kept_is_told_and_the_change_goes_on(model, monkeypatch, caplog):
    model.with_name(f".{model.name}.undo").write_text("in the way")
    change(model, "1")
    assert "cannot be undone" in caplog.text
    assert model.read_text() == "1"


def test_a_folder_of_states_that_is_not_ours_stops_changes_and_undo(model, monkeypatch):
    """Else the next undo would take back two changes: this one, which is not kept, and one before."""
    change(model, "1")
    monkeypatch.setattr("os.access", lambda path, mode: False)
    for step in (keep_state, undo.undo):
        with pytest.raises(InputError, match="undo"):
            step(model)
    assert model.read_text() == "1"
    monkeypatch.undo()
    assert [state.read_text() for state in kept_states(model)] == ["0"]
