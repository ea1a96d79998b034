r"""LangChain's react-agent template: a graph with two nodes, the model and its search tool.

Source: langchain-ai/react-agent, src/react_agent/graph.py (MIT), rebuilt because the template is
not published as a package. The graph, state and context are the same; a dictionary replaces Tavily.

    evert train agent=react_search:agent train_tasks=react_search:TASKS \
        policy_names=gpt-4o-mini on_agent_error=0
"""

import os
from dataclasses import dataclass

from langchain.chat_models import init_chat_model
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.runtime import Runtime
from scoring import closeness

FOUNDED = {
    "LangChain": "October 2022",
    "Hugging Face": "2016, in New York",
    "PyTorch": "September 2016",
    "Thinking Machines Lab": "February 2025",
}
TASKS = [{"about": name, "founded": when} for name, when in FOUNDED.items()]

# -- the agent, rebuilt --------------------------------------------------------------------------


@dataclass(kw_only=True)
class Context:
    """The configuration for a run."""

    model: str = "gpt-4o-mini"
    system_prompt: str = "You are a helpful AI assistant. Search before you answer."


async def search(query: str) -> str:
    """Search for general web results."""
    found = [f"{name} was founded in {when}." for name, when in FOUNDED.items() if name in query]
    return " ".join(found) or "No results."


async def call_model(state: MessagesState, runtime: Runtime[Context]):
    """Call the model, offering it the tool."""
    model = init_chat_model(runtime.context.model, model_provider="openai").bind_tools([search])
    system = {"role": "system", "content": runtime.context.system_prompt}
    return {"messages": [await model.ainvoke([system, *state["messages"]])]}


def route(state: MessagesState):
    """Run the tools if the model called any, otherwise finish."""
    return "tools" if state["messages"][-1].tool_calls else END


builder = StateGraph(MessagesState, context_schema=Context)
builder.add_node(call_model)
builder.add_node("tools", ToolNode([search]))
builder.add_edge(START, "call_model")
builder.add_conditional_edges("call_model", route, ["tools", END])
builder.add_edge("tools", "call_model")
graph = builder.compile(name="ReAct Agent")

# -- glue ----------------------------------------------------------------------------------------

os.environ.setdefault("OPENAI_API_KEY", "unused")


async def agent(task):
    """Ask a question; return 1.0 if the reply contains the answer, else up to 0.2."""
    asked = {"messages": [("user", f"When was {task['about']} founded?")]}
    said = (await graph.ainvoke(asked, context=Context()))["messages"][-1].text
    return 1.0 if task["founded"] in said else 0.2 * closeness(said, task["founded"])
