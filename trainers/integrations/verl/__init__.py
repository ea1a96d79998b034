"""evert's agents under verl's trainers: an agent loop that verl's own YAML names.

The public face is ``evert.verl``. In the order in which an episode goes through them:

    agent_loop.py   ``EvertAgentLoop``: an episode of any agent, as verl plays its agent loops
    settings.py     what its YAML says: the agent, an Env's options, where the task is
    servers.py      verl's sampling servers as the Cookbook's token completer
    outputs.py      a trajectory as verl's outputs, one a lineage

Beside them:

    dataset.py      tasks as the Parquet file that verl reads, and back
"""
