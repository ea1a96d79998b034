"""Commands whose arguments map to a settings class."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import chz

from evert.trainers.config.arguments import (
    UsageError,
    gather,
    read_pairs,
    read_settings,
    settings_help,
)
from evert.trainers.system.command import run_command

T = TypeVar("T")


@dataclass(frozen=True)
class Command(Generic[T]):
    """A command: its settings class, the help text above the settings, and a function to run."""

    settings: type[T]
    usage: str
    body: Callable[[T], int | None]
    bare: str
    """The setting to suggest in the error for an argument without ``=``."""
    name: str = ""
    """Full name of a two-word command (``engine plan``). If its first argument is only a value,
    it is the value of the setting ``bare``."""
    examples: Mapping[str, str] = field(default_factory=dict)
    """An example for each mapping setting."""

    def parse(self, arguments: Sequence[str]) -> T:
        """Parse the settings. For ``engine plan``, the first argument has to be ``plan``."""
        if self.name:
            first, second = self.name.split()
            word, *arguments = [*arguments] or ["nothing"]
            if word != second:
                raise UsageError(
                    f"evert {first} got {word!r}, expected {second}. See: evert {self.name} --help"
                )
        return read_settings(self.settings, self._pairs(arguments))

    def help(self, arguments: Sequence[str]) -> str:
        """Return the usage, then all settings with the values that these arguments give them."""
        options = [argument for argument in arguments if argument not in self.name.split()]
        return self.usage + settings_help(self.settings, self._pairs(options))

    def _pairs(self, arguments: Sequence[str]) -> dict[str, Any]:
        if self.name and arguments and "=" not in arguments[0]:
            arguments = [f"{self.bare}={arguments[0]}", *arguments[1:]]
        pairs = read_pairs(arguments, chz.chz_fields(self.settings), self.bare)
        return gather(pairs, self.examples)

    def main(self, argv: Sequence[str] | None = None) -> int:
        """Run the command; see ``run_command``."""
        return run_command(lambda arguments: self.body(self.parse(arguments)), argv, self.help)
