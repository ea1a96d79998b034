"""Agents as Gymnasium environments: ids, spaces, and episodes that are driven from outside.

Read in this order:

    registration.py   ids: the games', and ``register_agent`` for agents of your own
    env.py            ``AgentGymEnv``: an agent as a synchronous ``gymnasium.Env``
    episode.py        one episode of it, on the event loop
    vector.py         ``AgentVectorEnv``: many of them at once
    arguments.py      its arguments, checked
    spaces.py         what observations and actions may be, at both levels
    transcript.py     an episode for people: ``render()``
    loop.py           the event loop that all environments of a process share
"""
