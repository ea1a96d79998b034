"""Import paths: ``package.module:name``, as agents, tasks and everything else is named in text."""

import pkgutil
from typing import Any

from evert.bridge.errors import EvertError, text_of
from evert.bridge.tracebacks import own_frames


def resolve(path: str, what: str, error: type[EvertError]) -> Any:
    """What an import path ``package.module:name`` names; the name may have dots.

    Args:
        path: The import path.
        what: What is looked for, in the words of a message ("agent", "tasks").
        error: What to raise.

    Raises:
        EvertError: Of the class ``error``: nothing is found there, or its module cannot be
            imported.
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
    except (Exception, SystemExit) as cause:  # whatever a user's module does when it is imported
        raise error(
            f"No {what} at {path!r}: importing {module} raised {type(cause).__name__}: "
            f"{text_of(cause)}{_place(cause)}. A module named here is imported as it is: what it "
            "needs (a key in the environment, say) has to be there, and a script's own work "
            "belongs under `if __name__ == '__main__':`."
        ) from cause


def _place(error: BaseException) -> str:
    """Where an exception went through code that is nobody's package; empty: nowhere."""
    own = own_frames(error)
    return f" (at {own[-1].filename}:{own[-1].lineno})" if own else ""
