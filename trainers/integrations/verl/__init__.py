"""Train evert agents with verl, through an agent loop that is configured in verl's YAML.

The public API is in ``evert.verl``. An episode uses these files, in this order:

    agent_loop.py   ``EvertAgentLoop``: a verl agent loop that plays an episode of any agent
    settings.py     the loop's YAML config: agent, Env options, and where to find the task in a row
    servers.py      a Cookbook token completer that samples from verl's servers
    outputs.py      converts a trajectory to verl outputs, one per lineage

There is also:

    dataset.py      writes tasks to a Parquet file for verl, and reads a task back from a row
"""
