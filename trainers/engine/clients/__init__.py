"""Tinker's clients, and what is checked before anything is computed.

What makes what, and then what they share:

    service_client.py   the one that makes the others
    training_client.py  a model in training
    sampling_client.py  frozen weights
    rest_client.py      runs and checkpoints
    door.py             what a training request holds is checked before the worker
    readings.py         what a request wants to know of its prompt
    futures.py          the futures they return
    engine.py           everything that is loaded
"""
