r"""Agents as tools in the OpenAI Agents SDK: one agent calls translators, and one summarizes.

Source: openai/openai-agents-python, examples/agent_patterns/agents_as_tools.py (MIT), used
unchanged from the openai-agents sources. The agents create their own clients, and evert takes over
their calls.

    evert train agent=translations:agent train_tasks=translations:TASKS \
        policy_names=gpt-5.6-luna on_agent_error=0
"""

import os

from agents import ModelBehaviorError, Runner, set_tracing_disabled
from examples.agent_patterns.agents_as_tools import orchestrator_agent, synthesizer_agent
from scoring import closeness

TASKS = [
    {"text": "Good morning", "Spanish": "Buenos días", "French": "Bonjour"},
    {"text": "Thank you", "Spanish": "Gracias", "French": "Merci"},
    {"text": "See you tomorrow", "Spanish": "Hasta mañana", "French": "À demain"},
    {"text": "Two coffees, please", "Spanish": "Dos cafés, por favor", "French": "Deux cafés"},
]

# -- glue ----------------------------------------------------------------------------------------

os.environ.setdefault("OPENAI_API_KEY", "unused")
set_tracing_disabled(True)


async def agent(task):
    """Send a request; return how close the final output is to both translations."""
    asked = f"Translate '{task['text']}' to Spanish and French."
    try:
        translated = await Runner.run(orchestrator_agent, asked)
        summed_up = await Runner.run(synthesizer_agent, translated.to_input_list())
    except ModelBehaviorError:  # the reply was truncated
        return 0.0
    return closeness(summed_up.final_output, f"{task['Spanish']}\n{task['French']}")
