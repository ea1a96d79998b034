"""Parse settings, given as ``key=value`` strings or as Python values.

Each error message contains the setting, the invalid value, and the accepted values.
"""

import ast
import math
import re
import shutil
import textwrap
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, TypeVar

import chz
import chz.blueprint

from evert.bridge.errors import EvertError, nearest
from evert.bridge.redaction import PASSWORD_MARK

_REFUSALS = (
    chz.blueprint.ConstructionException,
    chz.blueprint.ExtraneousBlueprintArg,
    chz.blueprint.InvalidBlueprintArg,
    chz.blueprint.MissingBlueprintArg,
)

T = TypeVar("T")

FIELDS = {
    "limits": ("rl/rollout_limits.py", "RolloutLimits"),
    "parse_error_policy": ("rl/rollout_limits.py", "ParseErrorPolicy"),
    "cookbook": ("rl/train.py", "Config"),
}
"""Maps mapping settings to the Cookbook file and class whose fields are their allowed keys."""


class UsageError(EvertError, ValueError):
    """An argument is not a setting of this command, or its value is invalid."""


def read_pairs(arguments: Sequence[str], names: Collection[str], bare: str = "") -> dict[str, str]:
    """Parse ``key=value`` arguments. If a key is repeated, the last value wins.

    ``bare`` is the key to suggest in the error for an argument without ``=``.
    """
    pairs: dict[str, str] = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals or key.startswith("-"):
            raise UsageError(_spaces_hint(argument, arguments) or _no_pair(argument, names, bare))
        if key.partition(".")[0] not in names:
            raise UsageError(f"There is no setting {key!r} (got {argument!r}).{_near(key, names)}")
        pairs[key] = value
    return pairs


def read_paths_and_settings(kind: type[T], arguments: Sequence[str]) -> tuple[list[Path], T]:
    """Split a command's arguments into paths, without duplicates, and settings."""
    options = [argument for argument in arguments if "=" in argument or argument.startswith("-")]
    pairs = [text for text in options if not Path(text).exists()]  # folder names may contain =
    paths = [Path(argument).expanduser() for argument in arguments if argument not in pairs]
    settings = read_settings(kind, read_pairs(pairs, chz.chz_fields(kind)))
    return list({path.resolve(): path for path in paths}.values()), settings


def _no_pair(argument: str, names: Collection[str], bare: str) -> str:
    key, _, value = argument.lstrip("-").replace("-", "_").partition("=")
    meant = f"{key}={value or '...'}" if key in names else ""
    if bare and not meant and not argument.startswith("-"):
        meant = f"{bare}={argument}"
    hint = f" Did you mean {meant}?" if meant else _more(names)
    return f"Got {argument!r}; settings must have the form key=value.{hint}"


def _spaces_hint(argument: str, arguments: Sequence[str]) -> str:
    """Return an error message if there are spaces around "=", or else ""."""
    if not any(word.startswith("=") or word.endswith("=") for word in arguments):
        return ""
    joined = re.sub(" *= *", "=", " ".join(arguments))
    return f"Got {argument!r}; settings must have the form key=value, without spaces: {joined}"


def check_name(key: str, names: Collection[str], name_of: Callable[[str], str] = str) -> None:
    """Raise an error if a setting is not in ``names``. ``read_settings`` explains ``name_of``."""
    if key not in names:
        raise UsageError(f"There is no setting {name_of(key)!r}.{_near(key, names, name_of)}")


def cookbook_fields(name: str) -> list[str]:
    """Return the keys that a mapping setting can have.

    They are parsed from the Cookbook's source code, because importing the Cookbook is slow.
    """
    file, kind = FIELDS[name]
    tree = ast.parse((files("tinker_cookbook") / file).read_text(encoding="utf-8"))
    [definition] = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == kind]
    lines = [line.target for line in definition.body if isinstance(line, ast.AnnAssign)]
    return [line.id for line in lines if isinstance(line, ast.Name)]


def _near(key: str, names: Collection[str], name_of: Callable[[str], str] = str) -> str:
    mappings = [name for name in FIELDS if name in names and key in cookbook_fields(name)]
    near = f"{mappings[0]}.{key}" if mappings else nearest(key, names)
    return f" Did you mean {name_of(near)!r}?" if near else _more(names)


def _more(names: Collection[str]) -> str:
    if not names:
        return ""
    listing = textwrap.shorten(", ".join(names), 200, placeholder=" ...")
    return f" Settings: {listing}. Run with --help for a description."


def gather(
    settings: Mapping[str, Any], examples: Mapping[str, str], under: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return all settings. Settings that are keys of ``examples`` are converted to flat mappings.

    ``a={"b": {"c": 1}}`` and ``a.b.c=1`` both become ``{"a": {"b.c": 1}}``. ``under`` contains
    the default entries of these mappings. Other settings are returned unchanged.
    """
    result: dict[str, Any] = {}

    def add(name: str, path: str, value: Any) -> None:
        if chz.is_chz(value) and not path:
            value = {k: v for k, v in chz.asdict(value).items() if v is not None}
        if isinstance(value, Mapping):
            for inner, item in value.items():
                add(name, f"{path}.{inner}" if path else str(inner), item)
        elif path:
            result[name][path] = value
        elif value is not None:
            raise UsageError(
                f"{name} needs a key after a dot, for example {examples[name]}; got {value!r}."
            )

    for key, value in settings.items():
        name, _, path = key.partition(".")
        if name in examples:
            result.setdefault(name, {**(under or {}).get(name, {})})
            add(name, path, value)
        else:
            result[key] = value
    return result


def read_settings(
    kind: Callable[..., T],
    settings: Mapping[str, Any],
    under: Mapping[str, Any] | None = None,
    name_of: Callable[[str], str] = str,
) -> T:
    """Create an instance of a chz class from settings.

    Strings in ``settings`` are parsed as the field's type; other values are used unchanged.
    ``under`` contains defaults. ``name_of`` maps a key to the name shown in error messages.
    """
    values, castables = {**(under or {}), **settings}, {**settings}
    _check_passwords(values, name_of)
    for key, value in settings.items():
        if _type_at(kind, key) not in (str, str | None):
            _check_finite(name_of(key), value)
        if isinstance(value, str):
            castables[key] = chz.blueprint.Castable(value)
    try:
        return chz.Blueprint(kind).apply(under or {}).apply(castables).make()
    except EvertError:
        raise
    except (*_REFUSALS, TypeError, ValueError) as error:
        raise UsageError(_in_our_words(error, kind, values, name_of)) from error


def _check_passwords(values: Mapping[str, Any], name_of: Callable[[str], str]) -> None:
    for key, value in values.items():
        if isinstance(value, Mapping):
            _check_passwords({f"{key}.{inner}": item for inner, item in value.items()}, name_of)
        texts = value if isinstance(value, tuple) else [value]
        if any(isinstance(text, str) and f"{PASSWORD_MARK}@" in text for text in texts):
            raise UsageError(
                f"{name_of(key)} is {value!r}: the password was not saved in the record. Pass it "
                f"again with the password: {name_of(key)}=..."
            )


def number_in(value: Any) -> float | None:
    """Convert a setting's value to a float. Return None if it does not represent a number."""
    try:
        return float(value) if isinstance(value, str | int | float) else None
    except (OverflowError, ValueError):
        return None


def _check_finite(key: str, value: Any) -> None:
    if not math.isfinite(number_in(value) or 0.0):
        raise UsageError(f"{key} must be a finite number, got {value}.")


def _in_our_words(
    error: Exception,
    kind: Callable[..., Any],
    values: Mapping[str, Any],
    name_of: Callable[[str], str],
) -> str:
    text = str(error)
    if match := re.search(r"for param '([^']+)'|Expected '([^']+)' to be", text):
        key = match[1] or match[2]
        if below := [path for path in values if path.startswith(f"{key}.")]:
            expected = in_words(_type_at(kind, key))
            return f"There is no setting {name_of(below[0])!r}: {name_of(key)} takes {expected}."
        return f"{name_of(key)} takes {in_words(_type_at(kind, key))}, got {values.get(key)!r}."
    if match := re.match(r"Missing required arguments for parameter\(s\): (.+)", text):
        missing = ", ".join(map(name_of, match[1].split(", ")))
        return f"{missing} must be set, because there is no default."
    if match := re.match(r"Extraneous argument '([^']+)'", text):
        parent, _, name = match[1].rpartition(".")
        fields = fields_of(_type_at(kind, parent) if parent else kind)
        where = f" in {name_of(parent)}" if parent else ""
        near = _near(name, fields, lambda near: name_of(match[1].removesuffix(name) + near))
        return f"There is no setting {name_of(match[1])!r}{where}.{near}"
    return re.sub(r"\bX_(\w+)", lambda match: name_of(match[1]), text)  # chz adds X_ to names


def _type_at(kind: Any, path: str) -> Any:
    for name in path.split("."):
        field = fields_of(kind).get(name)
        if field is None:
            return None
        kind = field.x_type
    return kind


def fields_of(kind: Any) -> dict[str, Any]:
    """Return the fields of a chz class, or of all chz classes in a union, by name."""
    classes = [cls for cls in (kind, *typing.get_args(kind)) if chz.is_chz(cls)]
    return {name: field for cls in classes for name, field in chz.chz_fields(cls).items()}


def in_words(kind: Any) -> str:
    """Describe a type in words."""
    words: dict[Any, str] = {
        int: "an integer", float: "a number", bool: "True or False", str: "a string",
        type(None): "None", None: "another value", Any: "a value",
    }  # fmt: skip
    parts = typing.get_args(kind)
    origin = typing.get_origin(kind)
    if origin is Literal:
        return " or ".join(map(str, parts))
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(in_words, parts))
    if origin in (tuple, list, Sequence):
        return f"{in_words(parts[0])}, or several separated by commas"
    return words.get(kind) or f"a {getattr(kind, '__name__', kind)}"


LEFT = 39
"""Width of the help's left column, in characters."""


def settings_help(
    kind: type, settings: Mapping[str, Any], presets: Mapping[str, Mapping[str, Any]] | None = None
) -> str:
    """List a chz class's settings, each with its value, the value's origin and a description."""
    fields = chz.chz_fields(kind)
    root = [chz.chz_fields(base) for base in kind.__mro__ if chz.is_chz(base)][-1]
    lines: list[str] = []
    for name in sorted(fields, key=root.__contains__):  # episode settings last
        value, origin = fields[name]._default, ""
        for layer, values in {**(presets or {}), "given": settings}.items():
            if name in values:
                value, origin = values[name], f" (from {layer})"
        is_mapping = typing.get_origin(fields[name].x_type) is Mapping
        key = f"{name}.KEY" if is_mapping else name
        lines.append(help_line(key, value, fields[name]._doc + origin))
    return "\n".join(lines)


def help_line(key: str, value: Any, doc: str) -> str:
    """Format one setting and its description, wrapped to the terminal width."""
    if isinstance(value, tuple | list):
        value = ",".join(map(str, value))
    value = "" if type(value).__name__ == "MISSING_TYPE" else value
    head = f"  {key}={value} "
    width = min(shutil.get_terminal_size((100, 24)).columns, 120)
    wrapped = textwrap.indent(textwrap.fill(doc, width - LEFT), " " * LEFT)
    if len(head) > LEFT:
        return f"{head.rstrip()}\n{wrapped}"
    return (head.ljust(LEFT) + wrapped[LEFT:]).rstrip()
