"""``codex``: OpenAI's Codex as an agent, over the Responses API.

https://developers.openai.com/codex; tried with 0.169.0, ``npm install -g @openai/codex``.

- It does not look at ``OPENAI_BASE_URL``: its address stands in a ``config.toml`` of the episode's
  home, with all that keeps it from asking again, looking for updates and sending analytics.
- Its sessions and logs lie there too; your own configuration is not read.
"""

from collections.abc import Sequence
from typing import Unpack

from evert.agents.process import ProcessAgent
from evert.agents.recipe import CommonOptions, as_text, made
from evert.agents.sandboxed import SandboxChoice

CONFIG = """\
model_provider = "evert"
approval_policy = "never"
check_for_update_on_startup = false
allow_login_shell = false
web_search = "disabled"
{lean_settings}
[model_providers.evert]
name = "evert"
base_url = "{base_url}"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
stream_idle_timeout_ms = 86400000

[features]
apps = false
plugins = false
{lean_features}
[analytics]
enabled = false

[feedback]
enabled = false

[history]
persistence = "none"
"""

LEAN_SETTINGS = """\
model_instructions_file = "instructions.md"
include_permissions_instructions = false
agents.enabled = false
skills.include_instructions = false
skills.bundled.enabled = false
tools.experimental_request_user_input.enabled = false
"""

LEAN_FEATURES = """\
goals = false
hooks = false
image_generation = false
view_image = false
"""

INSTRUCTIONS = """\
You are a coding agent. Work in the current folder with the shell until the task is done, then say \
so. To edit a file, run `apply_patch` with a patch.
"""


def codex(
    prompt: str = "{task}",
    *,
    sandbox: SandboxChoice = None,
    lean: bool = False,
    program: str = "codex",
    arguments: Sequence[str] = (),
    **options: Unpack[CommonOptions],
) -> ProcessAgent:
    """Codex on a prompt, in a folder of its own.

    Args:
        prompt: What to do; ``{task}`` in it is the episode's task, ``{task[name]}`` a part of it.
        sandbox: evert's, as for ``ProcessAgent``, in which Codex makes none of its own; or Codex's
            own, which is then the only one: "read-only", "workspace-write" (its commands change
            files of the folder, no network), or "danger-full-access" (none: in containers). Where
            there can be none of evert's, None is "workspace-write".
        lean: Whether to leave out what makes the prompt long: 5 kB, with instructions of two
            lines and a shell as the only tool, where its own has 39.
        program: The program, or its path.
        arguments: Further arguments.
        **options: ``files``, ``setup``, ``reward``, ``cwd``, ``env``, ``host``: see
            ``ProcessAgent``. A file ``{home}/.codex/config.toml`` replaces the one of evert's.

    Raises:
        InvalidAgentError: As ``ProcessAgent``.
    """
    config = CONFIG.replace("{lean_settings}\n", LEAN_SETTINGS if lean else "")
    config = config.replace("{lean_features}\n", LEAN_FEATURES if lean else "")
    files = {"{home}/.codex/config.toml": config}
    if lean:
        files["{home}/.codex/instructions.md"] = INSTRUCTIONS
    own = sandbox if isinstance(sandbox, str) else "workspace-write"

    def command(mode: str) -> list[str]:
        started = [program, "exec", "--skip-git-repo-check", "--color", "never", "-m", "{model}"]
        return [*started, "--sandbox", mode, *arguments, "--", as_text(prompt)]

    return made(
        command(own),
        {**options, "sandbox": False if isinstance(sandbox, str) else sandbox},
        files=files,
        env={},
        install="npm install -g @openai/codex",
        command_in_sandbox=command("danger-full-access"),
    )
