"""A command whose arguments are the settings of one class: its help, and how it is run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import chz

from evert.trainers.config.arguments import read_pairs, read_settings, settings_help
from evert.trainers.system.command import run_command

T = TypeVar("T")


@dataclass(frozen=True)
class Command(Generic[T]):
    """The class of its settings, the text above them in its help, and what it does with them."""

    settings: type[T]
    usage: str
    body: Callable[[T], int | None]
    bare: str
    """The setting that a bare word is most likely meant for."""

    def parse(self, arguments: Sequence[str]) -> T:
        """The settings that the arguments give."""
        given = read_pairs(arguments, chz.chz_fields(self.settings), self.bare)
        return read_settings(self.settings, given)

    def help(self, arguments: Sequence[str]) -> str:
        """The usage, and each setting with its value beside these arguments."""
        given = read_pairs(arguments, chz.chz_fields(self.settings), self.bare)
        return self.usage + settings_help(self.settings, given)

    def main(self, argv: Sequence[str] | None = None, program: Sequence[str] = ()) -> int:
        """Run the command; see ``run_command``. Which ``program`` it is called by is all one."""
        return run_command(lambda arguments: self.body(self.parse(arguments)), argv, self.help)
