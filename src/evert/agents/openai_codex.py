"""``codex``: OpenAI's Codex as an agent, using the Responses API.

https://developers.openai.com/codex; tested with 0.169.0, ``npm install -g @openai/codex``.

- Codex ignores ``OPENAI_BASE_URL``, so the URL is set in a ``config.toml`` in the episode's home.
  This file also disables retries, update checks and analytics.
- Sessions and logs are stored in the same home, and Codex does not read your configuration.
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
    """Create an agent that runs Codex on a prompt, in a new folder for each episode.

    Args:
        prompt: The instruction. ``{task}`` is replaced by the episode's task, and ``{task[name]}``
            by a part of the task.
        sandbox: evert's sandbox, as in ``ProcessAgent`` (Codex's own is then disabled), or the name
            of a Codex sandbox to use instead: "read-only", "workspace-write" (commands can change
            files in the folder and have no network), or "danger-full-access" (no sandbox, for
            containers). If evert does not create a sandbox, Codex uses "workspace-write".
        lean: Whether to shorten the prompt from 39 kB to 5 kB, with two lines of instructions and
            a shell as the only tool.
        program: The name or path of the program.
        arguments: Additional arguments.
        **options: ``files``, ``setup``, ``reward``, ``cwd``, ``env``, ``host``: see
            ``ProcessAgent``. A file ``{home}/.codex/config.toml`` replaces evert's.

    Raises:
        InvalidAgentError: See ``ProcessAgent``.
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
