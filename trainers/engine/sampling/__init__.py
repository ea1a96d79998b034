"""Sampling and scoring with frozen weights.

From the outside in:

    sampler.py        checks requests for replies and log-probabilities
    scheduler.py      serves many requests in one running batch
    running_batch.py  samples a token for each row of a batch
    drawing.py        random numbers, truncation, stops
    scoring.py        reads values from the logits of given tokens
    frozen.py         weights ready to sample from
    batches.py        rows decoded together over a key-value cache
    lean_batch.py     a batch of our own forward pass
    row_cache.py      its keys and values, row by row
    stem.py           the common prefix of its rows, held once
    graphs.py         its steps, captured as CUDA graphs
    generic_batch.py  a batch of any other model
    prefill.py        orders rows so that common prefixes are computed first, and once
    prefix_cache.py   keys and values, looked up by their tokens
    memory.py         how much memory is free, and how much a sampler gets
"""
