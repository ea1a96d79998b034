"""The OpenAI Agents SDK's customer service: a triage agent hands off to FAQ or seat booking.

Source: openai/openai-agents-python, examples/customer_service/main.py (MIT), used unchanged from
the openai-agents sources.

    evert train agent=customer_service:agent train_tasks=customer_service:TASKS on_agent_error=0
"""

from agents import ModelBehaviorError, OpenAIProvider, RunConfig, Runner
from examples.customer_service.main import AirlineAgentContext, triage_agent
from scoring import closeness

TASKS = [
    {"confirmation": f"QX{number}", "seat": f"{number % 30 + 1}{'ABCDEF'[number % 6]}"}
    for number in range(1000, 1020)
]
ASKS = "Please put me into seat {seat}. My confirmation number is {confirmation}."

# -- glue ----------------------------------------------------------------------------------------


async def agent(client, task):
    """Send a message; return 1.0 if the seat was booked, else up to 0.2 for the reply."""
    provider = OpenAIProvider(openai_client=client.openai)
    config = RunConfig(model_provider=provider, tracing_disabled=True)
    context = AirlineAgentContext()
    asked = ASKS.format(**task)
    try:
        result = await Runner.run(triage_agent, asked, context=context, run_config=config)
    except ModelBehaviorError:  # the reply was truncated
        return 0.0
    booked = {"confirmation": context.confirmation_number, "seat": context.seat_number} == task
    return 1.0 if booked else 0.2 * closeness(result.final_output, task["seat"])
