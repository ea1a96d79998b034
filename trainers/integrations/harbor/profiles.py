"""Profiles of Harbor's agents, by name: what evert sets for them, unless the user sets it.

``QUIET`` is for every trial: it keeps an agent from asking the model beyond its task (titles,
memories), from asking the same twice, and from giving up while a trainer samples. ``LEAN`` is for
``lean=True``: it leaves out most of what stands in the first prompt beside the task.

Each has fields of Harbor's ``AgentConfig``; "files" to lay in the environment; and whether the
agent "completes_arguments" of tool calls that it sends back. What is known of a program stands in
``evert.agents``; here is how it is told through Harbor.
"""

import json
import tomllib
from typing import Any, TypeAlias

from evert.agents import aider_chat, anthropic_claude, google_gemini, openai_codex

Profile: TypeAlias = dict[str, Any]

AIDER = {
    f"AIDER_{flag[2:].removeprefix('no-').replace('-', '_').upper()}": str(
        not flag.startswith("--no-")
    ).lower()
    for flag in aider_chat.QUIET
}
"""Its flags as variables; Harbor hands on few flags."""

CODEX = openai_codex.CONFIG.replace("{lean_settings}\n", "").replace("{lean_features}\n", "")
INSTRUCTIONS = "/root/.evert/instructions.md"
SETTINGS = "/root/.evert/settings.json"

CLAUDE = {
    name: value
    for name, value in anthropic_claude.ENVIRONMENT.items()
    if "{" not in value  # Harbor names the models
}

TOOLS = ("list", "glob", "grep", "task", "todowrite", "webfetch", "skill", "question", "patch")
"""Of opencode's; a shell and a tool that reads are left."""

NEVER = 86_400_000
"""Milliseconds, a day: a reply may wait for a whole batch."""

QUIET: dict[str, Profile] = {
    "aider": {"env": {**AIDER, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}},
    "claude-code": {"env": CLAUDE, "completes_arguments": True},
    "codex": {"kwargs": {"config": tomllib.loads(CODEX)}},  # Harbor fills in the address
    "gemini-cli": {
        "env": {"GEMINI_CLI_NO_RELAUNCH": "true", "GEMINI_CLI_SYSTEM_SETTINGS_PATH": SETTINGS},
        "files": {SETTINGS: json.dumps(google_gemini.SETTINGS)},
    },
    "opencode": {
        "kwargs": {
            "opencode_config": {
                "agent": {"title": {"disable": True}},
                "share": "disabled",
                "autoupdate": False,
                "provider": {"evert": {"options": {"timeout": False}}},
            }
        },
        "env": {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_LSP_DOWNLOAD": "1"},
    },
    "qwen-coder": {
        "kwargs": {
            "config": {
                "memory": {"enableManagedAutoMemory": False, "enableManagedAutoDream": False},
                "model": {"generationConfig": {"timeout": NEVER, "maxRetries": 0}},
                "privacy": {"usageStatisticsEnabled": False},
                "telemetry": {"enabled": False},
            }
        },
    },
    # it would install a recorder in each environment
    "terminus-2": {"kwargs": {"record_terminal_session": False}},
}

LEAN: dict[str, Profile] = {
    "claude-code": {"env": {"CLAUDE_CODE_SIMPLE": "1"}},  # its --bare
    "codex": {
        "kwargs": {
            "config": {
                **tomllib.loads(openai_codex.LEAN_SETTINGS),
                "model_instructions_file": INSTRUCTIONS,
                "features": tomllib.loads(openai_codex.LEAN_FEATURES),
            }
        },
        "files": {INSTRUCTIONS: openai_codex.INSTRUCTIONS},
    },
    "gemini-cli": {
        "env": {"GEMINI_SYSTEM_MD": INSTRUCTIONS},
        "files": {
            INSTRUCTIONS: google_gemini.INSTRUCTIONS,
            SETTINGS: json.dumps(
                {
                    **google_gemini.SETTINGS,
                    "tools": {"core": [*google_gemini.LEAN_TOOLS, "run_shell_command"]},
                }
            ),
        },
    },
    "opencode": {
        "kwargs": {
            "opencode_config": {
                "agent": {"build": {"prompt": openai_codex.INSTRUCTIONS.split(" To edit")[0]}},
                "tools": dict.fromkeys(TOOLS, False),
            }
        }
    },
    "qwen-coder": {
        "env": {"QWEN_CODE_SIMPLE": "1", "QWEN_SYSTEM_MD": INSTRUCTIONS},  # its --bare
        "files": {INSTRUCTIONS: google_gemini.INSTRUCTIONS},
    },
}


def profile(name: str, lean: bool) -> Profile:
    """The profile of an agent, a dict of one's own; an empty one where there is none."""
    own: Profile = _merged(QUIET.get(name, {}), LEAN.get(name, {}) if lean else {})
    return {**own}


def _merged(one: Any, other: Any) -> Any:
    """Both; of what both have the other, but in dicts each key for itself."""
    if not isinstance(one, dict) or not isinstance(other, dict):
        return other
    both = {key: _merged(one[key], other[key]) for key in one.keys() & other.keys()}
    return {**one, **other, **both}
