"""Agents as Gymnasium environments: ids, spaces, and episodes that ``step`` drives.

Read in this order:

    registration.py   ids of the games, and ``register_agent`` for your agents
    env.py            ``AgentGymEnv``: an agent as a synchronous ``gymnasium.Env``
    episode.py        one episode, on the event loop
    vector.py         ``AgentVectorEnv``: many episodes at once
    arguments.py      checks of the arguments
    spaces.py         observation and action spaces, at both levels
    transcript.py     what ``render()`` shows
    loop.py           the event loop that all environments of a process share
"""
