"""``Kept``: an object in a configuration that is copied, or written down, without being either."""

from typing import Any


class Kept:
    """A value that stays itself where what holds it is copied deeply."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __deepcopy__(self, memo: dict[int, Any]) -> "Kept":
        return self

    def __repr__(self) -> str:
        return f"{self.value!r:.100}"

    def to_dict(self) -> str:
        """What the Cookbook writes down for it."""
        return f"<a {type(self.value).__name__}>"


def unwrap(value: Any) -> Any:
    """What a ``Kept`` holds; anything else as it is."""
    return value.value if isinstance(value, Kept) else value
