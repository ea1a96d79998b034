"""Implements Tinker's clients.

First the clients, then the parts that they share:

    service_client.py   makes the other clients
    training_client.py  trains a model
    sampling_client.py  samples from frozen weights
    rest_client.py      lists and deletes runs and checkpoints
    readings.py         log-probabilities of prompt tokens, for requests that include them
    futures.py          the futures that clients return
    surface.py          refuses hosted-only methods and a newer SDK's additions
    saves.py            the accepted saves
    engine.py           holds the loaded models, samplers and checkpoints
"""
