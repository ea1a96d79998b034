"""evert's agents under verl's trainers: an agent loop that is named in verl's YAML.

``evert.verl`` has the public names. In the order in which an episode uses the files:

    agent_loop.py   ``EvertAgentLoop``: an episode of any agent, as a verl agent loop
    settings.py     the loop's YAML: the agent, an Env's options, where the task is
    servers.py      verl's sampling servers as the Cookbook's token completer
    outputs.py      a trajectory as verl's outputs, one per lineage

Beside them:

    dataset.py      tasks as the Parquet file that verl reads, and a row's task
"""
