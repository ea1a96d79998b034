"""``Kept``: an object that is not copied or written out with the configuration it is in."""

from typing import Any


class Kept:
    """A value that deep copies of a configuration share; ``name`` is written in its place."""

    def __init__(self, value: Any, name: str = "") -> None:
        self.value, self.name = value, name

    def __deepcopy__(self, memo: dict[int, Any]) -> "Kept":
        return self

    def __repr__(self) -> str:
        return self.name or f"{self.value!r:.100}"

    def to_dict(self) -> str:
        """Return the text that the Cookbook writes in its place."""
        return self.name or f"<a {type(self.value).__name__}>"


def unwrap(value: Any) -> Any:
    """Return the value of a ``Kept``; anything else unchanged."""
    return value.value if isinstance(value, Kept) else value
