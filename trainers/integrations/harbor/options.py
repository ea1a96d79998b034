"""``TrialOptions``: validate the user's trial options and create Harbor's config.

All agents, environments and fields come from Harbor, except the "bubblewrap" environment.
"""

# pyright: reportMissingImports=false

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from harbor.agents.factory import AgentFactory
from harbor.agents.installed.acp_registry import is_acp_registry_shorthand
from harbor.models.environment_type import EnvironmentType
from harbor.models.trial.config import AgentConfig, EnvironmentConfig, TrialConfig
from pydantic import ValidationError

from evert.bridge.errors import InvalidAgentError, did_you_mean

SANDBOX, SANDBOX_PATH = "bubblewrap", "evert.harbor:Bubblewrap"
"""Name of evert's environment, and its import path for Harbor."""

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Default ``PATH``: the folders of the system's programs."""

OURS = {"task", "trial_name", "job_id", "source_trial"}
"""Fields of Harbor's ``TrialConfig`` that are set by evert, so users cannot set them."""

OWN = ("reward", "host", "serve_address", "trials_dir")
"""Arguments of ``HarborAgent`` that are not trial options."""


class TrialOptions:
    """The agent, environment and other options of a trial.

    Args:
        agent: Name of a Harbor agent, an import path, or a dict of ``AgentConfig`` fields.
        environment: Name of a Harbor environment, "bubblewrap", an import path, or a dict of
            ``EnvironmentConfig`` fields.
        installed: Local folders with the agent's program. If given, Harbor installs no agent.
        lean: Whether to shorten the agent's first prompt.
        **options: Other fields of Harbor's ``TrialConfig``.

    Raises:
        InvalidAgentError: The agent, environment, folder or field does not exist.
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
        for model, fields in ((TrialConfig, options), *models):
            names = [name for name in model.model_fields if name not in OURS]
            _check_names([*fields], names, f"field of {model.__name__}")
        name = str(self._agent.get("name"))
        is_elsewhere = ":" in name or is_acp_registry_shorthand(name)
        if not is_elsewhere and not self._agent.get("import_path"):
            _check_names([name], AgentFactory.registered_names(), "agent")
        self._profile = _profile(name, lean)
        self.completes_arguments = bool(self._profile.get("completes_arguments"))
        self.files: Mapping[str, str] = self._profile.get("files", {})
        self.programs = [installed] if isinstance(installed, str) else [*installed]
        self._show_programs()
        self.config("task", "trials")

    def _show_programs(self) -> None:
        """Make the installed programs visible in the sandbox, and add them to ``PATH``."""
        if not self.programs:
            return
        if not self.is_sandbox:
            raise InvalidAgentError(
                f"installed={self.programs} makes local programs visible in a sandbox, so it "
                "requires environment=bubblewrap. In other environments, Harbor installs agents."
            )
        from evert.agents.installed import needed  # slow import

        folders = [str(Path(folder).absolute()) for folder in self.programs]
        if gone := [folder for folder in folders if not Path(folder).is_dir()]:
            raise InvalidAgentError(f"installed={gone[0]!r}: this folder does not exist.")
        path = ":".join([*folders, SYSTEM_PATH])
        kwargs = self._environment.get("kwargs", {})
        readonly = [*kwargs.get("readonly", ()), *needed(["env"], {"PATH": path})]
        self._environment["kwargs"] = {**kwargs, "readonly": readonly}
        self._agent["env"] = {"PATH": path, **self._agent.get("env", {})}

    @property
    def is_sandbox(self) -> bool:
        """Whether the environment is evert's sandbox."""
        return self._environment.get("import_path") == SANDBOX_PATH

    def config(self, folder: str | Path, trials: str, **connection: Any) -> Any:
        """Return Harbor's config for a trial of the task in ``folder``.

        Harbor creates the trial's folder in ``trials``. ``connection`` contains the fields that
        connect the agent to its model. Fields set by the user take precedence.

        Raises:
            InvalidAgentError: A field has the wrong type.
        """
        fields = {"task": {"path": folder}, "trials_dir": trials, **self._options}
        try:
            agent_config = AgentConfig(**self._agent)
            kwargs = {**self._profile.get("kwargs", {}), **agent_config.kwargs}
            env = {**self._profile.get("env", {}), **connection.get("env", {}), **agent_config.env}
            fields["agent"] = {**connection, **self._agent, "kwargs": kwargs, "env": env}
            return TrialConfig(**fields, environment=self._environment)
        except ValidationError as error:
            problems = "; ".join(
                f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()
            )
            raise InvalidAgentError(f"Harbor rejected the trial options: {problems}.") from error


def _environment(environment: str | Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(environment, str):
        fields = {**environment}
        return {**fields, **_environment(fields["type"])} if "type" in fields else fields
    if environment == SANDBOX:
        return {"type": None, "import_path": SANDBOX_PATH}
    if ":" in environment:
        return {"import_path": environment}
    _check_names([environment], [SANDBOX, *(kind.value for kind in EnvironmentType)], "environment")
    return {"type": environment}


def _profile(name: str, lean: bool) -> dict[str, Any]:
    from evert.trainers.integrations.harbor.profiles import LEAN, profile  # slow import

    if lean and name not in LEAN:
        raise InvalidAgentError(
            f"lean={lean!r} is not supported by the agent {name!r}, only by {', '.join(LEAN)}. "
            "Leave it out."
        )
    return profile(name, lean)


def checked_url(url: str) -> str:
    """Check a ``serve_address``, and return it without trailing slashes.

    Raises:
        InvalidAgentError: The address is not an HTTP URL.
    """
    parts = urlsplit(str(url))
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
        raise InvalidAgentError(
            f"serve_address={url!r}; expected a URL that agents can use to reach this machine, "
            "such as 'https://trainer.example.org' or 'http://192.0.2.7:8443'."
        )
    return url.rstrip("/")


def _check_names(names: list[str], choices: list[str], what: str) -> None:
    for name in names:
        if name not in choices:
            hint = did_you_mean(name, choices)
            raise InvalidAgentError(
                f"Harbor has no {what} {name!r}.{hint} Available: {', '.join(choices)}."
            )
