"""`farrier verify | keygen`: what a publisher does without the control plane."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Annotated

import typer

from aifb.errors import AifbError
from aifb.reader import open_artifact
from aifb.signing import generate_key, keyid, private_key_pem
from cli.context import EXIT_USAGE, fail, out


def verify(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False)],
    digest: Annotated[str, typer.Option(help="The digest it must have.")] = "",
    flat: Annotated[str, typer.Option(help="Also compare the flat SHA3-512 that openssl prints.")] = "",
) -> None:
    """Check every byte of an .aifb FILE against its chunk tree."""
    try:
        with open_artifact(file, expected_root=bytes.fromhex(digest) if digest else None) as artifact:
            root = artifact.header.root.hex()
            tensors = len(artifact.metadata.tensors)
    except AifbError as bad:
        raise fail(f"{bad} [dim]({bad.code})[/]") from None
    except ValueError:
        raise fail("A digest is 128 hexadecimal characters.", EXIT_USAGE) from None
    if flat:
        with file.open("rb") as handle:
            found = hashlib.file_digest(handle, "sha3_512").hexdigest()
        if found != flat.lower():
            raise fail(f"The flat SHA3-512 of {file} is {found}, not {flat}.")
    out.print(f"{file}: good, {tensors} tensors, digest {root}", highlight=False, soft_wrap=True)


def keygen(file: Annotated[Path, typer.Argument(help="Where the private key goes; must not exist.")]) -> None:
    """Make a release key (RSA, 3072 bits) with mode 0600 and print its key id for the root document."""
    key = generate_key()
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise fail(f"{file} exists; a key is never overwritten.", EXIT_USAGE) from None
    with os.fdopen(descriptor, "wb") as handle:
        handle.write(private_key_pem(key))
    out.print(keyid(key.public_key()), highlight=False)
