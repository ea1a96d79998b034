r"""LangGraph's supervisor, which delegates to a research agent and a math agent.

Source: langchain-ai/langgraph-supervisor-py (MIT), using create_supervisor from the
langgraph-supervisor package. The team is rebuilt from the quickstart in its README.

    evert train agent=supervisor:agent train_tasks=supervisor:TASKS \
        policy_names=gpt-4o on_agent_error=0
"""

import os

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from langgraph_supervisor import create_supervisor
from scoring import closeness

HEADCOUNTS = {"Meta": 67317, "Apple": 164000, "Amazon": 1551000, "Netflix": 14000}
TASKS = [
    {"firms": [one, other], "sum": HEADCOUNTS[one] + HEADCOUNTS[other]}
    for one in HEADCOUNTS
    for other in HEADCOUNTS
    if one < other
]

# -- the agent, rebuilt --------------------------------------------------------------------------


def add(a: float, b: float) -> float:
    """Add two numbers."""
    return a + b


def multiply(a: float, b: float) -> float:
    """Multiply two numbers."""
    return a * b


def web_search(query: str) -> str:
    """Search the web for information."""
    return "\n".join(f"{name}: {count} employees in 2024." for name, count in HEADCOUNTS.items())


def team(model):
    """Return the supervisor and its two experts."""
    math = create_agent(
        model, [add, multiply], name="math_expert", system_prompt="You are good at arithmetic."
    )
    research = create_agent(
        model, [web_search], name="research_expert", system_prompt="You look facts up. No math."
    )
    prompt = "You lead a research expert, for facts, and a math expert, for arithmetic."
    return create_supervisor([research, math], model=model, prompt=prompt).compile()


# -- glue ----------------------------------------------------------------------------------------

os.environ.setdefault("OPENAI_API_KEY", "unused")


async def agent(task):
    """Ask a question; return 1.0 if the reply contains the correct sum, else up to 0.2."""
    asked = f"How many people work for {' and '.join(task['firms'])} together?"
    state = await team(ChatOpenAI(model="gpt-4o")).ainvoke({"messages": [("user", asked)]})
    said = state["messages"][-1].text.replace(",", "")
    return 1.0 if str(task["sum"]) in said else 0.2 * closeness(said, str(task["sum"]))
