"""``wrong_field`` describes which field was rejected by a pydantic model, and why."""

from typing import Any

from pydantic import ValidationError

from evert.bridge.errors import repr_of


def wrong_field(value: Any, error: ValidationError) -> str:
    """Describe the first invalid field with its path, its value and what was expected."""
    errors = error.errors(include_url=False, include_context=False)
    # For a union, the useful error is the error of the member with the matching type.
    first = next((detail for detail in errors if not detail["type"].endswith("_type")), errors[0])
    place = _place(value, first["loc"])
    if first["type"] == "missing":
        return f"{place}.{first['loc'][-1]} is missing".removeprefix(".")
    return f"{place} is {repr_of(first['input'])}; {first['msg']}"


def _place(value: Any, location: tuple[int | str, ...]) -> str:
    """Return the path of a field without the names of union members, which pydantic adds."""
    place = ""
    for key in location:
        if isinstance(value, list) and isinstance(key, int):
            place, value = f"{place}[{key}]", value[key]
        elif isinstance(value, dict) and key in value:
            place, value = f"{place}.{key}", value[key]
    return place.removeprefix(".")
