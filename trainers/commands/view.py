"""``evert view [PATH ...]``: browse runs and their episodes live (see ``viewing/``)."""

import asyncio
import hashlib
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import chz

from evert.bridge.errors import EvertError
from evert.bridge.records.row_files import near_path
from evert.trainers.config.arguments import read_paths_and_settings, settings_help
from evert.trainers.config.fields import port
from evert.trainers.config.prices import PriceSettings
from evert.trainers.system.command import run_async, run_command

USAGE = """\
Usage: evert view [PATH ...] [key=value ...]

Shows runs and their episodes live in your browser. PATH can be a run or an evaluation, a folder
that contains runs or evaluations, or a file of rollouts (default: runs/). Files are only read.

  evert view
  evert view runs/NAME evaluations/NAME
  evert view runs port=8765          then, on your own machine: ssh -L 8765:localhost:8765 HOST

"""


CACHE_SECONDS = 30 * 24 * 3600
"""How long to keep an index in the cache after it was last written."""


class ViewError(EvertError, OSError):
    """There is nothing to view, or the port cannot be opened."""


@chz.chz
class ViewSettings(PriceSettings):
    """The page's port (only reachable from this machine), and prices for calculating costs."""

    port: int = port("port on 127.0.0.1 (0 picks a free port)")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; see ``run_command``."""
    return run_command(_run, argv, lambda arguments: USAGE + settings_help(ViewSettings, {}))


def parse(arguments: Sequence[str]) -> tuple[list[Path], ViewSettings]:
    """Parse the command line into the paths to view and the settings."""
    paths, settings = read_paths_and_settings(ViewSettings, arguments)
    return paths or [Path("runs")], settings


def _run(arguments: Sequence[str]) -> None:
    from evert.trainers.viewing.incremental_index import holds_episodes

    paths, settings = parse(arguments)
    for path in paths:
        if not path.exists():
            hint = near_path(path) or "Pass a folder of runs."
            raise ViewError(f"{path} does not exist. {hint}")
        if path.is_file() and not holds_episodes(path):
            raise ViewError(
                f"{path} contains no rollouts: none of its first lines is an episode. Pass a "
                "run, an evaluation, a folder of either, or a file of rollouts "
                "(rollouts/*.jsonl, rollouts.jsonl)."
            )
    with _database(paths) as database:
        try:
            run_async(_serve(paths, database, settings))
        except KeyboardInterrupt:
            print("\nStopped.")


async def _serve(paths: Sequence[Path], database: Path, settings: ViewSettings) -> None:
    from aiohttp import web

    from evert.trainers.viewing.incremental_index import Index
    from evert.trainers.viewing.server import Viewer

    viewer = Viewer(Index(paths, database), settings.prices)
    viewer.start()
    runner = web.AppRunner(viewer.app(), access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", settings.port)
        try:
            await site.start()
        except OSError as error:
            raise ViewError(
                f"The page cannot be served at 127.0.0.1:{settings.port}: {error}. Choose a "
                "different port=, or omit it to use any free port."
            ) from error
        [address] = runner.addresses
        print(f"http://127.0.0.1:{address[1]}/?token={viewer.token}", flush=True)
        print("Anyone with this link can read these runs. Press Ctrl-C to stop.", flush=True)
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()
        viewer.stop()


@contextmanager
def _database(paths: Sequence[Path]) -> Iterator[Path]:
    """Yield the index file for these paths.

    The file is in the user's cache, or in a temporary folder if the cache can't be used.
    """
    from filelock import FileLock, Timeout

    from evert.trainers.viewing.incremental_index import VERSION

    path_bytes = "\0".join(sorted(str(path.resolve()) for path in paths)).encode("utf-8", "replace")
    name = f"view-{VERSION}-{hashlib.sha256(path_bytes).hexdigest()[:16]}.sqlite"
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "evert"
    with ExitStack() as stack:
        try:
            home.mkdir(parents=True, exist_ok=True, mode=0o700)
            for file in home.glob("view-*"):
                if file.stat().st_mtime < time.time() - CACHE_SECONDS:
                    file.unlink(missing_ok=True)
            stack.enter_context(FileLock(home / f"{name}.lock", timeout=0))
        except (OSError, Timeout):
            home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="evert-view-")))
        yield home / name
