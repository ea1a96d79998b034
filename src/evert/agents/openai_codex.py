"""``codex``: OpenAI's Codex as an agent, over the Responses API.

https://developers.openai.com/codex; tested with 0.169.0, ``npm install -g @openai/codex``.

- It ignores ``OPENAI_BASE_URL``, so a ``config.toml`` in the episode's home has the URL. The file
  also switches off retries, the check for updates, and analytics.
- Codex also keeps its sessions and logs in that home, and does not read your configuration.
"""

from collections.abc import Sequence
from typing import Unpack

from evert.agents.process import ProcessAgent
from evert.agents.recipe import CommonOptions, as_text, make_agent
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
    """Return an agent that runs Codex on a prompt, in a new folder for each episode.

    Args:
        prompt: The instruction. ``{task}`` is replaced by the episode's task, ``{task[name]}`` by
            one part of the task.
        sandbox: As for ``ProcessAgent``: evert's sandbox, with Codex's own switched off. Or the
            name of a Codex sandbox to use instead: "read-only", "workspace-write" (its commands may
            change files in the folder, and have no network), or "danger-full-access" (no sandbox,
            for containers). Where evert makes no sandbox, Codex uses "workspace-write".
        lean: Whether to shorten the prompt from 39 kB to 5 kB, with two lines of instructions and
            a shell as the only tool.
        program: The program, or its path.
        arguments: Further arguments.
        **options: ``files``, ``setup``, ``reward``, ``cwd``, ``env``, ``host``: see
            ``ProcessAgent``. A file ``{home}/.codex/config.toml`` replaces evert's.

    Raises:
        InvalidAgentError: As for ``ProcessAgent``.
    """
    config = CONFIG.replace("{lean_settings}\n", LEAN_SETTINGS if lean else "")
    config = config.replace("{lean_features}\n", LEAN_FEATURES if lean else "")
    files = {"{home}/.codex/config.toml": config}
    if lean:
        files["{home}/.codex/instructions.md"] = INSTRUCTIONS
    codex_sandbox = sandbox if isinstance(sandbox, str) else "workspace-write"

    def command(mode: str) -> list[str]:
        prefix = [program, "exec", "--skip-git-repo-check", "--color", "never", "-m", "{model}"]
        return [*prefix, "--sandbox", mode, *arguments, "--", as_text(prompt)]

    return make_agent(
        command(codex_sandbox),
        {**options, "sandbox": False if isinstance(sandbox, str) else sandbox},
        files=files,
        env={},
        install="npm install -g @openai/codex",
        command_in_sandbox=command("danger-full-access"),
    )
