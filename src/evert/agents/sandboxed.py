"""The ``sandbox=`` option of ``ProcessAgent``: decides whether to use a sandbox, and creates it.

In the sandbox, a command can read the system's folders, the programs that it needs
(``installed.py``) and the paths listed in the option. It can write to the episode's folders and
call the model.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

from evert.agents.installed import needed
from evert.agents.sandbox import Sandbox, sandbox_problem
from evert.bridge.clients.http.connections import LOOPBACK
from evert.bridge.clients.http.server import RELAYED_PORT, Address
from evert.bridge.errors import CommandError, InvalidAgentError

logger = logging.getLogger(__name__)

SandboxChoice: TypeAlias = bool | Sequence[str | Path] | None

IN_SANDBOX = (
    "It ran in a sandbox, without access to your home folder and the network. Use sandbox=[PATH] "
    "to show it another file or folder, or sandbox=False to run it as your user without a sandbox."
)


def check_choice(sandbox: SandboxChoice, host: str) -> bool | list[str] | None:
    """Validate the option, and make its paths absolute.

    Raises:
        InvalidAgentError: The option is invalid, a path is missing, or ``host`` is not loopback.
    """
    if sandbox is None or sandbox is False:
        return sandbox
    if host not in LOOPBACK:
        raise InvalidAgentError(
            f"sandbox={sandbox!r} cannot be combined with host={host!r}. A command in a sandbox "
            "has no network and does not need a host to reach the model. Leave out one of the two."
        )
    if sandbox is True:
        return True
    if isinstance(sandbox, str) or not isinstance(sandbox, Sequence):
        raise InvalidAgentError(
            f"sandbox={sandbox!r}; expected True, False, None, or a list of paths to show in it."
        )
    if missing := [str(path) for path in sandbox if not os.path.exists(path)]:
        raise InvalidAgentError(f"The path {missing[0]!r} in sandbox=... does not exist.")
    return [os.path.abspath(path) for path in sandbox]


def is_sandboxed(choice: bool | list[str] | None, host: str) -> bool:
    """Return whether to run a command in a sandbox on this machine. The result is logged once.

    Raises:
        CommandError: A sandbox is required but cannot be created on this machine.
    """
    if choice is False or (choice is None and host not in LOOPBACK):
        return False
    problem = sandbox_problem()
    if problem is not None and choice is not None:
        raise CommandError(
            f"sandbox={choice!r} requires a sandbox, but {problem}. Use sandbox=False to run the "
            "command as your user, with access to your files and the network."
        )
    _say_once(problem)
    return problem is None


@lru_cache
def _say_once(problem: str | None) -> None:
    if problem is None:
        logger.info(
            "Commands run in a sandbox. They can call the model, but not access your files or the "
            "network."
        )
    else:
        logger.warning("Commands run as your user, without a sandbox: %s.", problem)


def sandbox_of(
    choice: bool | list[str] | None,
    command: Sequence[str],
    judge: Sequence[str],
    variables: Mapping[str, str],
    writable: Sequence[Path],
    address: Address,
) -> Sandbox | None:
    """Create the sandbox for a command, or return None if the model is not on a Unix socket.

    The program and the judge's files are read-only, even in a writable folder. Earlier commands may
    have left links in a writable folder, so we ignore the links in it, and environment variables
    that point into it.
    """
    if address.socket is None:
        return None
    outer = [path for path in writable if not {*writable} & {*path.parents}]

    def is_inside(path: str) -> bool:
        return any(Path(path).is_relative_to(folder) for folder in outer)

    lists = {name: text.split(os.pathsep) for name, text in variables.items()}
    outside = {
        name: os.pathsep.join(path for path in paths if not is_inside(path))
        for name, paths in lists.items()
    }
    extra_paths = [
        *(choice if isinstance(choice, list) else []),
        *filter(is_inside, [command[0], *judge]),
    ]
    readonly = {**needed(command, outside), **{path: Path(path) for path in extra_paths}}
    return Sandbox(
        writable={str(path): path for path in outer},
        readonly={
            path: target
            for path, target in readonly.items()
            if not is_inside(path) or (os.path.exists(path) and os.path.realpath(path) == path)
        },
        ports={RELAYED_PORT: Path(address.socket)},
    )
