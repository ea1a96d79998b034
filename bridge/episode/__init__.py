"""One run of an agent: its calls, and what answers them.

In reading order:

    agent.py     which callables are agents, and what they may return
    notes.py     what an agent records between calls
    inbox.py     the waiting calls of one trained role, and the agent's timeout
    refusals.py  delays for an agent whose calls keep being refused
    routes.py    which inbox or frozen model answers a model name
    seeds.py     seeds of episodes
    episode.py   one run of an agent: its states, and the resources released at its end
"""
