r"""The flow that ``crewai create flow`` generates: a planner, a writer and an editor create a post.

Source: crewAIInc/crewAI, crewai_cli/templates/flow (MIT), used unchanged from the crewai-cli
package. It doesn't need a client: evert takes over the calls to CrewAI's default model.

    evert train agent=content_flow:agent train_tasks=content_flow:TASKS \
        policy_names=gpt-4.1-mini on_agent_error=0
"""

import os

os.environ.setdefault("CREWAI_DISABLE_TELEMETRY", "true")
os.environ.setdefault("CREWAI_DISABLE_VERSION_CHECK", "true")

from pathlib import Path
from types import ModuleType

import crewai_cli.templates.flow as template
from crewai.events.utils.console_formatter import set_suppress_console_output
from scoring import closeness

TASKS = [{"topic": topic} for topic in ("Tides", "Sourdough bread", "Prime numbers", "Owls")]

# The template contains a placeholder for the project's name.
SOURCE = Path(template.__file__).with_name("main.py").read_text()
project = ModuleType("content_project")
exec(SOURCE.replace("{{folder_name}}", template.__name__), vars(project))

# -- glue ----------------------------------------------------------------------------------------

os.environ.setdefault("OPENAI_API_KEY", "unused")


def agent(task):
    """Write a post; return how close its first line is to a Markdown title with the topic."""
    set_suppress_console_output(True)
    flow = project.ContentFlow()
    flow.kickoff({"crewai_trigger_payload": task})
    return closeness(flow.state.final_post.partition("\n")[0], f"# {task['topic']}")
