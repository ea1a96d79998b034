"""evert's agents under verl's trainers: an agent loop that is named in verl's YAML.

``evert.verl`` has the public names. In the order in which an episode uses the files:

    agent_loop.py   ``EvertAgentLoop``: plays an episode of any agent, as a verl agent loop
    settings.py     the loop's YAML: the agent, an Env's options, the task's place in a row
    servers.py      a token completer of the Cookbook that samples from verl's servers
    outputs.py      converts a trajectory to verl's outputs, one per lineage

In addition:

    dataset.py      writes tasks to a Parquet file for verl, and reads a row's task
"""
