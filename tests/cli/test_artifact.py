"""`farrier verify` and `farrier keygen`, which need no control plane."""

from __future__ import annotations

import hashlib
import stat
from pathlib import Path

from typer.testing import CliRunner

from aifb.signing import keyid, load_private_key
from cli.main import app
from tests.artifacts import pack

runner = CliRunner()


def test_verify_says_good_and_names_the_digest(tmp_path: Path) -> None:
    written = pack(tmp_path / "a.aifb").written
    flat = hashlib.sha3_512(written.path.read_bytes()).hexdigest()
    told = runner.invoke(app, ["verify", str(written.path), "--digest", written.digest, "--flat", flat])
    assert told.exit_code == 0, told.output
    assert written.digest in told.output


def test_verify_finds_a_flipped_bit(tmp_path: Path) -> None:
    written = pack(tmp_path / "a.aifb").written
    raw = bytearray(written.path.read_bytes())
    raw[-1] ^= 1
    written.path.chmod(0o600)
    written.path.write_bytes(raw)
    told = runner.invoke(app, ["verify", str(written.path)])
    assert told.exit_code == 1
    assert "mismatch" in told.output


def test_verify_with_another_digest_fails(tmp_path: Path) -> None:
    written = pack(tmp_path / "a.aifb").written
    assert runner.invoke(app, ["verify", str(written.path), "--digest", "0" * 128]).exit_code == 1
    assert runner.invoke(app, ["verify", str(written.path), "--digest", "xyz"]).exit_code == 2


def test_keygen_makes_a_private_key_only_once(tmp_path: Path) -> None:
    path = tmp_path / "release.pem"
    made = runner.invoke(app, ["keygen", str(path)])
    assert made.exit_code == 0, made.output
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = path.read_bytes()
    assert made.output.strip() == keyid(load_private_key(before).public_key())
    assert runner.invoke(app, ["keygen", str(path)]).exit_code == 2
    assert path.read_bytes() == before
