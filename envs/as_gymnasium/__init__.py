"""Turns agents into Gymnasium environments.

Suggested reading order:

    registration.py   ids for the games, and ``register_agent`` for your own agents
    env.py            ``AgentGymEnv``: an agent as a synchronous ``gymnasium.Env``
    episode.py        one episode, on the event loop
    vector.py         ``AgentVectorEnv``: many episodes in parallel
    arguments.py      argument validation
    spaces.py         observation and action spaces, at both levels
    transcript.py     the output of ``render()``
    loop.py           the event loop shared by all environments in a process
"""
