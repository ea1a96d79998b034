"""Samples from frozen weights, and scores given tokens with them.

Modules, from the outside in:

    sampler.py        validates requests to sample or score
    scheduler.py      serves many requests with one running batch
    running_batch.py  samples a token for each row of a batch
    drawing.py        draws tokens: random numbers, truncation, stops
    scoring.py        reads values from the logits of given tokens
    frozen.py         freezes a model so that it can be sampled from
    batches.py        decodes rows together using a key-value cache
    lean_batch.py     a batch that uses our own forward pass
    row_cache.py      a lean batch's keys and values, row by row
    stem.py           the common prefix of a lean batch's rows, stored only once
    graphs.py         captures a lean batch's steps as CUDA graphs
    generic_batch.py  a batch for all other models
    prefill.py        orders rows so that common prefixes are computed once, before the rest
    prefix_cache.py   keys and values, looked up by their tokens
    memory.py         measures free memory and decides how much of it a sampler gets
"""
