"""Adds one line to what pyproject.toml says: a ``.pth`` file beside the installed package.

Gymnasium 1.0 dropped the entry points by which plugins were found. For
``gymnasium.make("evert/...")`` to work without importing evert, something must run when Python
starts; the line in
``src/evert_gymnasium.pth`` sets a watcher that registers the games when (and only if) Gymnasium is
imported. setuptools has no setting for a file there, neither in wheels nor in editable installs.
"""

import zipfile
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.editable_wheel import editable_wheel

STARTUP = "src/evert_gymnasium.pth"


class BuildWithStartup(build_py):
    """Puts the file into wheels."""

    def run(self) -> None:
        """Build, then add the file."""
        super().run()
        if not self.editable_mode:
            self.copy_file(STARTUP, str(Path(self.build_lib) / Path(STARTUP).name))

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        """All files built, ours included."""
        own = [] if self.editable_mode else [str(Path(self.build_lib) / Path(STARTUP).name)]
        return [*super().get_outputs(include_bytecode), *own]


class EditableWithStartup(editable_wheel):
    """Puts the file into editable installs."""

    def run(self) -> None:
        """Build, then add the file to the finished wheel."""
        super().run()
        for wheel in Path(self.dist_dir).glob("evert-*.whl"):
            with zipfile.ZipFile(wheel, "a") as archive:
                archive.write(STARTUP, Path(STARTUP).name)


setup(cmdclass={"build_py": BuildWithStartup, "editable_wheel": EditableWithStartup})
