"""The embedded engine's implementation of Tinker's clients.

The clients, followed by the modules they share:

    service_client.py   creates the other clients
    training_client.py  trains a model
    sampling_client.py  samples from frozen weights
    rest_client.py      lists and deletes runs and checkpoints
    readings.py         log-probabilities of prompt tokens, for requests that ask for them
    futures.py          the futures that clients return
    surface.py          rejects hosted-only methods and additions in newer SDKs
    saves.py            keeps track of pending saves
    engine.py           holds the loaded models, samplers and checkpoints
"""
