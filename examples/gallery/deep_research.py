r"""LangChain's Open Deep Research: a supervisor delegates to researchers and writes a report.

Source: langchain-ai/open_deep_research (MIT), used unchanged from the open_deep_research package.
It calls gpt-4.1 and gpt-4.1-mini, and evert takes over these calls. A dictionary replaces Tavily.

    evert train agent=deep_research:agent train_tasks=deep_research:TASKS \
        policy_names=gpt-4.1,gpt-4.1-mini on_agent_error=0
"""

import os

from open_deep_research import utils
from open_deep_research.deep_researcher import deep_researcher
from openai import LengthFinishReasonError
from pydantic import ValidationError
from scoring import closeness

PAGES = {
    "tide": "Tides come from the Moon's gravity, and to a lesser part from the Sun's.",
    "sky": "The sky is blue since air scatters short waves of light more than long ones.",
    "bread": "Bread rises since yeast turns sugar into carbon dioxide.",
    "salt": "Salt melts ice since salt water freezes at a lower temperature.",
}
TASKS = [{"topic": topic, "answer": page} for topic, page in PAGES.items()]


async def look_up(queries, **options):
    """Return search results in Tavily's format."""
    results = [
        {"url": f"https://{topic}.example", "title": topic, "content": page, "raw_content": None}
        for topic, page in PAGES.items()
        if topic in " ".join(queries)
    ]
    return [{"query": query, "results": results} for query in queries]


utils.tavily_search_async = look_up

# -- glue ----------------------------------------------------------------------------------------

os.environ.setdefault("OPENAI_API_KEY", "unused")


async def agent(task):
    """Ask a question; return the report's similarity to the page that answers it."""
    asked = {"messages": [("user", f"Explain in a sentence: {task['topic']}")]}
    settings = {"configurable": {"allow_clarification": False}}
    try:
        state = await deep_researcher.ainvoke(asked, settings)
    except (LengthFinishReasonError, ValidationError):  # the brief is malformed
        return 0.0
    return closeness(state["final_report"], task["answer"])
