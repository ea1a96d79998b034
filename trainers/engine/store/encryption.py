"""Encrypts files to age recipients (filippo.io/age), as the service does for exports."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evert.trainers.engine.common.errors import CheckpointError

_SUFFIX = ".age"


def encrypt(folder: Path, recipients: Sequence[str]) -> None:
    """Replace every file in a folder with an encrypted file whose name ends in ``.age``."""
    age: Any = importlib.import_module("pyrage")  # untyped; the Cookbook requires it
    try:
        kinds = [
            (age.ssh if recipient.startswith("ssh-") else age.x25519, recipient)
            for recipient in recipients
        ]
        keys = [kind.Recipient.from_str(recipient) for kind, recipient in kinds]
    except age.RecipientError as error:
        raise CheckpointError(
            f"age_encryption_recipients has a key that cannot be read ({error}); expected age1... "
            "keys or SSH public keys. Make one with age-keygen."
        ) from error
    for file in [file for file in folder.iterdir() if file.is_file()]:
        age.encrypt_file(str(file), f"{file}{_SUFFIX}", keys)
        file.unlink()
