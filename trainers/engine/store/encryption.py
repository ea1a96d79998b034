"""Encrypts files for age recipients (filippo.io/age), as the hosted service does for exports."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evert.trainers.engine.common.errors import CheckpointError

_SUFFIX = ".age"


def encrypt(folder: Path, recipients: Sequence[str]) -> None:
    """Replace each file in a folder with an encrypted file, appending ``.age`` to its name."""
    age: Any = importlib.import_module("pyrage")  # untyped; installed as a Cookbook dependency
    try:
        kinds = [
            (age.ssh if recipient.startswith("ssh-") else age.x25519, recipient)
            for recipient in recipients
        ]
        keys = [kind.Recipient.from_str(recipient) for kind, recipient in kinds]
    except age.RecipientError as error:
        raise CheckpointError(
            f"age_encryption_recipients contains an invalid key ({error}); expected age1... "
            "keys or SSH public keys. You can create one with age-keygen."
        ) from error
    for file in [file for file in folder.iterdir() if file.is_file()]:
        age.encrypt_file(str(file), f"{file}{_SUFFIX}", keys)
        file.unlink()
