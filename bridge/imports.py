"""Import paths: ``package.module:name``, as agents, tasks and everything else is named in text."""

import pkgutil
from typing import Any

from evert.bridge.errors import EvertError


def resolve(path: str, what: str, error: type[EvertError]) -> Any:
    """What an import path ``package.module:name`` names; the name may have dots.

    Args:
        path: The import path.
        what: What is looked for, in the words of a message ("agent", "tasks").
        error: What to raise.

    Raises:
        EvertError: Of the class ``error``: nothing is found there.
    """
    module, _, name = path.partition(":")
    if not module or not name:
        raise error(f"Got {path!r} for the {what}; expected an import path 'package.module:name'.")
    try:
        return pkgutil.resolve_name(path)
    except (ImportError, AttributeError, ValueError, TypeError) as cause:
        raise error(
            f"No {what} at {path!r}: {cause}. Expected an importable 'package.module:name'; "
            "modules are looked for in the current folder and among what is installed."
        ) from cause
