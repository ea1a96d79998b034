"""Import paths: settings refer to agents, tasks and other objects as ``package.module:name``.

A path may also call a class that sets ``from_path = True``, with literals as arguments. All other
calls are rejected, because the path may be untrusted, for example if it was read from another
user's run folder.

    evert:GymAgent('FrozenLake-v1', is_slippery=False)
"""

import ast
import pkgutil
import sys
from pathlib import Path
from typing import Any

from evert.bridge.errors import EvertError, text_of
from evert.bridge.tracebacks import own_frames


def resolve(path: str, kind: str, error: type[EvertError]) -> Any:
    """Import the object at a path. ``kind`` (e.g. "agent") is its name in error messages."""
    module, _, name = path.partition(":")
    if not module or not name:
        file = ", or an existing file or folder" if kind in ("tasks", "demonstrations") else ""
        raise error(
            f"Got {path!r} for the {kind}; expected an import path 'package.module:name'{file}."
        )
    try:
        return _evaluate(module, name) if "(" in name else pkgutil.resolve_name(path)
    except (Exception, SystemExit) as cause:  # importing a user's module may raise anything
        is_inside = module not in sys.modules and own_frames(cause)
        usual = ImportError, AttributeError, ValueError, TypeError
        if is_inside or not isinstance(cause, usual):
            raise error(
                f"No {kind} at {path!r}: importing {module} raised {type(cause).__name__}: "
                f"{text_of(cause)}{place_of(cause)}. {_advice(cause)}"
            ) from cause
        parts = Path(module).with_suffix("").parts if module.endswith(".py") else ()
        dotted = ".".join(parts) if all(part.isidentifier() for part in parts) else ""
        hint = f" Did you mean {dotted}:{name}?" if dotted else _hidden_file(module)
        raise error(
            f"No {kind} at {path!r}: {cause}.{hint} Expected an importable 'package.module:name'; "
            "modules are looked up in the current folder and the installed packages."
        ) from cause


def _hidden_file(module: str) -> str:
    """Return a hint if an installed or imported module shadows a file in the current folder."""
    top = module.partition(".")[0]
    files = [file for file in (Path(f"{top}.py"), Path(top, "__init__.py")) if file.is_file()]
    if not files or top not in sys.modules:
        return ""
    imported = getattr(sys.modules[top], "__file__", None)
    if imported is not None and Path(imported).resolve() == files[0].resolve():
        return ""
    return (
        f" {top} was imported from {imported or 'Python itself'}, which takes precedence over "
        f"{files[0]} in the current folder. Rename your file."
    )


def _advice(cause: BaseException) -> str:
    """Return advice on how to fix an exception raised while importing a module."""
    if isinstance(cause, SyntaxError):
        return f"Fix the syntax error in {cause.filename}, line {cause.lineno}."
    if isinstance(cause, ImportError):
        return (
            "Fix that import, run evert from the folder that contains the module, or install the "
            f"missing package for this Python ({sys.executable})."
        )
    return (
        "Importing a module runs its code. Provide what it needs (for example, an API key in the "
        "environment), and move a script's main code under `if __name__ == '__main__':`."
    )


def _evaluate(module: str, expression: str) -> Any:
    """Evaluate names, attributes and calls with literals. Anything else raises ValueError."""

    def value_of(node: ast.expr) -> Any:
        match node:
            case ast.Name(name):
                return pkgutil.resolve_name(f"{module}:{name}")
            case ast.Attribute(inner, name):
                return getattr(value_of(inner), name)
            case ast.Call(called, arguments, options):
                target = value_of(called)
                if not (isinstance(target, type) and getattr(target, "from_path", False)):
                    raise ValueError(
                        f"{ast.unparse(called)} cannot be called in a path because it is not a "
                        "class with from_path = True"
                    )
                keywords = {
                    option.arg or "**": ast.literal_eval(option.value) for option in options
                }
                return target(*map(ast.literal_eval, arguments), **keywords)
        raise ValueError(f"{ast.unparse(node)} is neither a name nor a call with literals")

    try:
        return value_of(ast.parse(expression, mode="eval").body)
    except SyntaxError as error:
        raise ValueError(
            f"{expression!r} is not a valid expression; expected a call that creates an object, "
            "like the repr of a dataclass"
        ) from error


def place_of(error: BaseException) -> str:
    """Return the innermost line of the user's code in an exception's traceback, or ""."""
    frames = own_frames(error)
    return f" (at {frames[-1].filename}:{frames[-1].lineno})" if frames else ""
