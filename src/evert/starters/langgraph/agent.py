"""An agent built with LangGraph. ``ChatOpenAI`` calls the model through ``client.transport``."""

import openai
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from tasks import prompt, reward


async def agent(client, task):
    """Run the graph once and return the reward."""
    model = ChatOpenAI(
        model=client.model,
        api_key="unused",
        base_url=client.transport.base_url,
        http_async_client=openai.DefaultAsyncHttpxClient(transport=client.transport),
        http_client=openai.DefaultHttpxClient(transport=client.transport),
        max_retries=0,
    )

    async def ask(state):
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("ask", ask)
    graph.add_edge(START, "ask")
    graph.add_edge("ask", END)
    state = await graph.compile().ainvoke({"messages": [{"role": "user", "content": prompt(task)}]})
    return reward(state["messages"][-1].content, task)
