"""What ``sandbox=`` of a ``ProcessAgent`` means: whether a command runs in a sandbox, and in which.

It is there to read what the system has, what the command needs (``installed.py``) and what its
author names; to write, the episode's own folders; and the model to call.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

from evert.agents.installed import needed
from evert.agents.sandbox import Sandbox, sandbox_problem, system_folders
from evert.bridge.clients.http.connections import LOOPBACK
from evert.bridge.clients.http.server import RELAYED_PORT, Address
from evert.bridge.errors import CommandError, InvalidAgentError

logger = logging.getLogger(__name__)

SandboxChoice: TypeAlias = bool | Sequence[str | Path] | None

IN_SANDBOX = (
    "It ran in a sandbox, without your home and network: sandbox=[PATH] shows it a file or folder "
    "more, sandbox=False runs it as your user, without one."
)


def checked(sandbox: SandboxChoice, host: str) -> bool | list[str] | None:
    """The choice, its paths made absolute.

    Raises:
        InvalidAgentError: It is none, or the model is to be reached by another host as well.
    """
    if sandbox is None or sandbox is False:
        return sandbox
    if host not in LOOPBACK:
        raise InvalidAgentError(
            f"sandbox={sandbox!r} with host={host!r}: a command in a sandbox reaches no host, and "
            "finds the model inside. Leave out one of the two."
        )
    if sandbox is True:
        return True
    if isinstance(sandbox, str) or not isinstance(sandbox, Sequence):
        raise InvalidAgentError(
            f"sandbox={sandbox!r}; expected True, False, None, or a list of paths to show inside."
        )
    if gone := [str(path) for path in sandbox if not os.path.exists(path)]:
        raise InvalidAgentError(f"sandbox= is to show {gone[0]!r} inside: it is not there.")
    return [os.path.abspath(path) for path in sandbox]


def is_sandboxed(choice: bool | list[str] | None, host: str) -> bool:
    """Whether a command runs in a sandbox here; the first time it is logged.

    Raises:
        CommandError: It must, and there can be none.
    """
    if choice is False or (choice is None and host not in LOOPBACK):
        return False
    problem = sandbox_problem()
    if problem is not None and choice is not None:
        raise CommandError(
            f"sandbox={choice!r} asks for a sandbox, and {problem}. sandbox=False runs the command "
            "as your user, with your files and network."
        )
    _say_once(problem)
    return problem is None


@lru_cache
def _say_once(problem: str | None) -> None:
    if problem is None:
        logger.info("Commands run in a sandbox: no network but the model, none of your files.")
    else:
        logger.warning("Commands run without a sandbox, as your user: %s.", problem)


def sandbox_of(
    choice: bool | list[str] | None,
    command: Sequence[str],
    variables: Mapping[str, str],
    writable: Sequence[Path],
    address: Address,
) -> Sandbox | None:
    """The sandbox of a command; None where the model is not served for one."""
    if address.socket is None:
        return None
    named = choice if isinstance(choice, list) else []
    outer = [path for path in writable if not {*writable} & {*path.parents}]
    return Sandbox(
        writable={str(path): path for path in outer},
        readonly={
            **system_folders(),
            **needed(command, variables),
            **{path: Path(path) for path in named},
        },
        ports={RELAYED_PORT: Path(address.socket)},
    )
