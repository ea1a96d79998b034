"""Import paths: ``package.module:name``, as agents, tasks and everything else is named in text.

A class that says ``from_path = True`` may be called in one, with literals: a path that comes from
elsewhere, out of a run's folder say, can have nothing else done.

    evert:GymAgent('FrozenLake-v1', is_slippery=False)
"""

import ast
import pkgutil
from typing import Any

from evert.bridge.errors import EvertError, text_of
from evert.bridge.tracebacks import own_frames


def resolve(path: str, what: str, error: type[EvertError]) -> Any:
    """What an import path ``package.module:name`` names; ``what`` it is, in a message's words."""
    module, _, name = path.partition(":")
    if not module or not name:
        raise error(f"Got {path!r} for the {what}; expected an import path 'package.module:name'.")
    try:
        return _made(module, name) if "(" in name else pkgutil.resolve_name(path)
    except (ImportError, AttributeError, ValueError, TypeError) as cause:
        raise error(
            f"No {what} at {path!r}: {cause}. Expected an importable 'package.module:name'; "
            "modules are looked for in the current folder and among what is installed."
        ) from cause
    except (Exception, SystemExit) as cause:  # whatever a user's module does when it is imported
        raise error(
            f"No {what} at {path!r}: importing {module} raised {type(cause).__name__}: "
            f"{text_of(cause)}{place_of(cause)}. A module named here is imported as it is: what it "
            "needs (a key in the environment, say) has to be there, and a script's own work "
            "belongs under `if __name__ == '__main__':`."
        ) from cause


def _made(module: str, expression: str) -> Any:
    """Evaluate a name, dots, and calls with literals; a ValueError for anything else."""

    def value_of(node: ast.expr) -> Any:
        match node:
            case ast.Name(name):
                return pkgutil.resolve_name(f"{module}:{name}")
            case ast.Attribute(inner, name):
                return getattr(value_of(inner), name)
            case ast.Call(called, arguments, options):
                found = value_of(called)
                if not (isinstance(found, type) and getattr(found, "from_path", False)):
                    raise ValueError(
                        f"{ast.unparse(called)} cannot be called in a path: it is no class with "
                        "from_path = True in it"
                    )
                named = {each.arg or "**": ast.literal_eval(each.value) for each in options}
                return found(*map(ast.literal_eval, arguments), **named)
        raise ValueError(f"{ast.unparse(node)} is neither a name nor a call with literals")

    try:
        return value_of(ast.parse(expression, mode="eval").body)
    except SyntaxError as error:
        raise ValueError(
            f"{expression!r} is no expression; what stands in a path is the call that makes an "
            "object, as a dataclass's repr is"
        ) from error


def place_of(error: BaseException) -> str:
    """Where an exception passed through the user's code; "" if it did not."""
    own = own_frames(error)
    return f" (at {own[-1].filename}:{own[-1].lineno})" if own else ""
