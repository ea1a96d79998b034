"""``Kept`` wraps an object in a configuration so that the object is not copied or serialized."""

from typing import Any


class Kept:
    """A value that deep copies share. Serialized configurations contain ``name`` instead."""

    def __init__(self, value: Any, name: str = "") -> None:
        self.value, self.name = value, name

    def __deepcopy__(self, memo: dict[int, Any]) -> "Kept":
        return self

    def __repr__(self) -> str:
        return self.name or f"{self.value!r:.100}"

    def to_dict(self) -> str:
        """Return the text that the Cookbook writes instead of the value."""
        return self.name or f"<a {type(self.value).__name__}>"


def unwrap(value: Any) -> Any:
    """Return the value of a ``Kept``. Anything else is returned unchanged."""
    return value.value if isinstance(value, Kept) else value
