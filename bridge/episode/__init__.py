"""Runs an agent for one episode and routes its model calls.

In reading order:

    agent.py     which callables are valid agents, and what they may return
    notes.py     rewards, metrics and logs recorded between calls
    inbox.py     pending calls of one trained role, and the agent timeout
    refusals.py  delays for agents that keep making calls we refuse
    routes.py    maps model names to inboxes and frozen models
    seeds.py     episode seeds
    episode.py   the lifecycle of one agent run, including cleanup
"""
