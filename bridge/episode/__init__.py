"""One run of an agent: who calls, and where the call leads.

In reading order:

    agent.py     what an agent is, and what it may return
    notes.py     what an agent records between calls
    inbox.py     one trained role: calls that wait, the clock
    refusals.py  an agent whose calls are refused again and again
    routes.py    which inbox or frozen model a model name leads to
    seeds.py     seeds of episodes
    episode.py   one run of an agent: its life, and what is released with it
"""
