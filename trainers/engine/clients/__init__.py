"""Tinker's clients.

The clients, then the parts that they share:

    service_client.py   makes the other clients
    training_client.py  trains a model
    sampling_client.py  samples from frozen weights
    rest_client.py      lists and deletes runs and checkpoints
    readings.py         log-probabilities of a prompt's tokens, if a request includes them
    futures.py          the futures that clients return
    surface.py          methods that are refused, and what a newer SDK adds
    saves.py            the saves that were accepted
    engine.py           holds everything that is loaded
"""
