"""``TrialOptions``: what a user says of a trial, checked, and as Harbor's configuration.

Agents, environments and fields are Harbor's own; "bubblewrap" is evert's environment.
"""

# pyright: reportMissingImports=false

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from harbor.agents.factory import AgentFactory
from harbor.agents.installed.acp_registry import is_acp_registry_shorthand
from harbor.models.environment_type import EnvironmentType
from harbor.models.trial.config import AgentConfig, EnvironmentConfig, TrialConfig
from pydantic import ValidationError

from evert.bridge.errors import InvalidAgentError

SANDBOX, SANDBOX_PATH = "bubblewrap", "evert.harbor:Bubblewrap"
"""The environment that is evert's own, and where Harbor finds it."""

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where the system's programs are."""

OURS = {"task", "trial_name", "job_id", "source_trial"}
"""Fields of a trial's configuration that are the episode's."""

OWN = ("reward", "host", "serve_address", "trials_dir")
"""What else ``HarborAgent`` takes."""


class TrialOptions:
    """Agent, environment and further fields of a trial.

    Args:
        agent: A name or import path of Harbor's, or the fields of its ``AgentConfig``.
        environment: The same of an environment, or "bubblewrap".
        installed: Folders of this machine with the agent's program; there is no more to install.
        lean: Whether the agent's first prompt is to be a short one.
        **options: Further fields of Harbor's ``TrialConfig``.

    Raises:
        InvalidAgentError: There is no such agent, environment, folder or field.
    """

    def __init__(
        self,
        agent: str | Mapping[str, Any],
        environment: str | Mapping[str, Any],
        installed: str | Sequence[str] = (),
        lean: bool = False,
        **options: Any,
    ) -> None:
        self._options = options
        self._agent: dict[str, Any] = {"name": agent} if isinstance(agent, str) else {**agent}
        self._environment = _environment(environment)
        models = (AgentConfig, self._agent), (EnvironmentConfig, self._environment)
        for model, given in ((TrialConfig, options), *models):
            known = [name for name in model.model_fields if name not in OURS]
            _check_names([*given], known, f"field of {model.__name__}")
        name = str(self._agent.get("name"))
        is_elsewhere = ":" in name or is_acp_registry_shorthand(name)
        if not is_elsewhere and not self._agent.get("import_path"):
            _check_names([name], AgentFactory.registered_names(), "agent")
        self._profile = _profile(name, lean)
        self.completes_arguments = bool(self._profile.pop("completes_arguments", False))
        self.files: Mapping[str, str] = self._profile.pop("files", {})
        self.programs = [installed] if isinstance(installed, str) else [*installed]
        self._show_programs()
        self.config("task", "trials")

    def _show_programs(self) -> None:
        """Have the sandbox show the programs, and the agent find them."""
        if not self.programs:
            return
        if not self.is_sandbox:
            raise InvalidAgentError(
                f"installed={self.programs} shows programs of this machine to a sandbox: it needs "
                "environment=bubblewrap. Elsewhere Harbor installs its agents itself."
            )
        from evert.agents.installed import needed  # what it imports takes a second

        folders = [str(Path(folder).absolute()) for folder in self.programs]
        if gone := [folder for folder in folders if not Path(folder).is_dir()]:
            raise InvalidAgentError(f"installed= names {gone[0]!r}, and there is no such folder.")
        path = ":".join([*folders, SYSTEM_PATH])
        kwargs = self._environment.get("kwargs", {})
        shown = [*kwargs.get("readonly", ()), *needed(["env"], {"PATH": path})]
        self._environment["kwargs"] = {**kwargs, "readonly": shown}
        self._agent["env"] = {"PATH": path, **self._agent.get("env", {})}

    @property
    def is_sandbox(self) -> bool:
        """Whether the environment is evert's own."""
        return self._environment.get("import_path") == SANDBOX_PATH

    def config(self, folder: str | Path, trials: str, **connection: Any) -> Any:
        """Harbor's configuration of a trial.

        Args:
            folder: The task's.
            trials: Where Harbor's folder of the trial will lie.
            **connection: Fields of the agent that lead it to its model; the user's come first.

        Raises:
            InvalidAgentError: A field is of a wrong kind.
        """
        fields = {"task": {"path": folder}, "trials_dir": trials, **self._options}
        try:
            own = AgentConfig(**self._agent)
            kwargs = {**self._profile.get("kwargs", {}), **own.kwargs}
            env = {**self._profile.get("env", {}), **connection.get("env", {}), **own.env}
            fields["agent"] = {**connection, **self._agent, "kwargs": kwargs, "env": env}
            return TrialConfig(**fields, environment=self._environment)
        except ValidationError as error:
            said = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
            raise InvalidAgentError(
                f"Harbor cannot read the options of a trial: {said}."
            ) from error


def _environment(given: str | Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an environment."""
    if not isinstance(given, str):
        fields = {**given}
        return {**fields, **_environment(fields["type"])} if "type" in fields else fields
    if given == SANDBOX:
        return {"type": None, "import_path": SANDBOX_PATH}
    if ":" in given:
        return {"import_path": given}
    _check_names([given], [SANDBOX, *(each.value for each in EnvironmentType)], "environment")
    return {"type": given}


def _profile(name: str, lean: bool) -> dict[str, Any]:
    """What is set for an agent."""
    from evert.trainers.integrations.harbor.profiles import LEAN, profile  # so, too

    if lean and name not in LEAN:
        raise InvalidAgentError(
            f"lean={lean!r} with the agent {name!r}, of which there is no shorter form. Leave it "
            f"out; it is for {', '.join(LEAN)}."
        )
    return profile(name, lean)


def checked_url(given: str) -> str:
    """The root of an address to be reached at, without a slash at its end.

    Raises:
        InvalidAgentError: It is none.
    """
    parts = urlsplit(str(given))
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
        raise InvalidAgentError(
            f"serve_address={given!r} is to be the URL under which an agent reaches this machine, "
            "like 'https://trainer.example.org' or 'http://192.0.2.7:8443'."
        )
    return given.rstrip("/")


def _check_names(given: list[str], known: list[str], what: str) -> None:
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise InvalidAgentError(
                f"Harbor has no {what} {name!r}.{hint} It has {', '.join(known)}."
            )
