"""``wrong_field``: says which field of a value a pydantic model rejects, and why."""

from typing import Any

from pydantic import ValidationError

from evert.bridge.errors import repr_of


def wrong_field(value: Any, error: ValidationError) -> str:
    """Describe the first wrong field: its path, its value, and what was expected."""
    errors = error.errors(include_url=False, include_context=False)
    # In a union, the useful error is that of the member whose type fits.
    first = next((detail for detail in errors if not detail["type"].endswith("_type")), errors[0])
    place = _place(value, first["loc"])
    if first["type"] == "missing":
        return f"{place}.{first['loc'][-1]} is missing".removeprefix(".")
    return f"{place} is {repr_of(first['input'])}; {first['msg']}"


def _place(value: Any, location: tuple[int | str, ...]) -> str:
    """Return a field's path without the names of union members that pydantic adds."""
    place = ""
    for key in location:
        if isinstance(value, list) and isinstance(key, int):
            place, value = f"{place}[{key}]", value[key]
        elif isinstance(value, dict) and key in value:
            place, value = f"{place}.{key}", value[key]
    return place.removeprefix(".")
