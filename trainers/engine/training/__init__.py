"""Training a model: forward, backward, optimizer step.

From the outside in:

    trainer.py     a model, its accumulated gradient and its optimizer
    examples.py    reads training data and splits them into micro-batches
    pass_budget.py computes how many tokens of a pass fit into memory
    families.py    groups rows whose common prefix is computed once
    passes.py      forward passes of the model in training
    losses.py      the losses
    provenance.py  says which tokens were sampled
"""
