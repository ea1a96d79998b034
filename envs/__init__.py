"""The games, as plain agents, and agents as Gymnasium environments.

Read in this order:

    identity.py       a game of one turn
    guess_number.py   a game of ten turns
    twenty_questions/ a game with a world in it: data, answerers, players
    registration.py   the table of games; ``register_agent`` for agents of your own
    gym_env.py        ``AgentGymEnv``: an agent as a synchronous ``gymnasium.Env``
    episode.py        one episode of it, on the event loop
    arguments.py      its arguments, checked
    spaces.py         what observations and actions may be, at both levels
    transcript.py     an episode for people: ``render()``
    loop.py           the event loop all environments of a process share
    discovery.py      when the games are registered
    errors.py         the one error of its own

Importing this package registers the games, and imports neither torch nor tinker nor Gymnasium.
"""

from evert.envs.discovery import register_when_gymnasium_is_there

register_when_gymnasium_is_there()
