from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from shared.errors import ConfigError, Unauthenticated
from shared.principals.principal import Principal
from shared.principals.secret import derived, make_secret, read_secrets, signer_of

OLD, NEW = "o" * 32, "n" * 32


def test_a_secret_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "auth" / "secret"
    before = os.umask(0)
    try:
        make_secret(path)
    finally:
        os.umask(before)
    made = read_secrets(path)
    make_secret(path)
    assert read_secrets(path) == made
    assert len(made[0]) == 64
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_every_secret_of_the_file_is_believed_and_the_first_one_signs(tmp_path: Path) -> None:
    paths = {name: tmp_path / name for name in ("old", "both", "new")}
    paths["old"].write_text(OLD)
    paths["both"].write_text(f"{NEW}\n\n{OLD}\n")
    paths["new"].write_text(NEW)
    signers = {name: signer_of(path) for name, path in paths.items()}
    who = Principal.operator("acme")
    assert signers["both"].verify(signers["old"].sign(who, 1.0)) == who
    assert signers["new"].verify(signers["both"].sign(who, 1.0)) == who
    with pytest.raises(Unauthenticated):
        signers["new"].verify(signers["old"].sign(who, 1.0))


@pytest.mark.parametrize("text", [None, "", "\n", "short", f"{NEW}\nshort"])
def test_one_that_is_missing_or_could_be_guessed_is_refused(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "secret"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=r"^auth\.secret_file: .*openssl rand"):
        read_secrets(path)


def test_each_purpose_has_a_secret_of_its_own() -> None:
    assert derived(b"x" * 32, "a") != derived(b"x" * 32, "b")
    assert len(derived(b"x" * 32, "a")) == 32
