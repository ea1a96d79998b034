"""Training a model: forward, backward, optimizer step.

From the outside in:

    trainer.py     a model, its accumulated gradient and its optimizer
    examples.py    reads its data and cuts them into micro-batches
    pass_budget.py how many tokens of a pass fit into memory
    families.py    groups rows whose common prefix is computed once
    passes.py      forward passes of the model in training
    losses.py      the losses
    provenance.py  tells which tokens were sampled
"""
