"""Settings of a server: the token, the address, and what is refused."""

import time
from pathlib import Path

import pytest

from acil.errors import InputError
from acil.serve.settings import Settings, read_token

GOOD = "0123456789abcdef"


def test_token_comes_from_a_private_file_or_the_environment(tmp_path):
    file = tmp_path / "token"
    file.write_text(GOOD + "\n")
    file.chmod(0o600)
    assert read_token(file, {"ACIL_TOKEN": "x" * 20}) == GOOD
    assert read_token(None, {"ACIL_TOKEN": GOOD}) == GOOD
    assert read_token(None, {}) is None


@pytest.mark.parametrize(
    "token", ["", "short", "x" * 15, "with a space in it", "ümlaut" * 5, "nul\0" * 9]
)
def test_weak_tokens_are_refused(tmp_path, token):
    file = tmp_path / "token"
    file.write_text(token)
    file.chmod(0o600)
    with pytest.raises(InputError, match="openssl rand"):
        read_token(file, {})
    with pytest.raises(InputError, match="openssl rand"):
        read_token(None, {"ACIL_TOKEN": token})


def test_token_that_others_can_read_is_refused(tmp_path):
    file = tmp_path / "token"
    file.write_text(GOOD)
    file.chmod(0o644)
    with pytest.raises(InputError, match="chmod 600"):
        read_token(file, {})
    with pytest.raises(InputError, match="Cannot read"):
        read_token(tmp_path / "missing", {})


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "models.example"])
def test_open_address_needs_a_token(host):
    with pytest.raises(InputError, match="token"):
        Settings(Path("m.acil"), host=host)
    assert not Settings(Path("m.acil"), host=host, token=GOOD).loopback


def test_missing_folder_is_told_before_anything_is_taught(tmp_path):
    with pytest.raises(InputError, match="Create"):
        Settings(tmp_path / "missing" / "m.acil")


def test_larger_images_than_are_ever_decoded_cannot_be_allowed():
    with pytest.raises(InputError, match="89 megapixels"):
        Settings(Path("m.acil"), max_pixels=120_000_000)


def test_token_is_not_shown():
    assert GOOD not in repr(Settings(Path("m.acil"), token=GOOD))


def test_answers_are_sent_at_once(taught):
    """Small answers must not wait for acknowledgements (40 ms each): the fastest shows it."""
    seconds = []
    for _ in range(10):
        begin = time.perf_counter()
        assert taught.get("/health").status_code == 200
        seconds.append(time.perf_counter() - begin)
    assert min(seconds) < 0.03
