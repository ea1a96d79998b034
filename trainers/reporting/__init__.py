"""The page of ``evert report``, and every figure of the project.

In reading order:

    run.py          reads a run folder
    panels.py       the figures that runs have, and their metrics
    tokens.py       counts a run's tokens, and their cost
    transcripts.py  selects episodes to show, cut to length
    figures/        draws the figures of reports, runs, evaluations and sweeps
    sections.py     makes the page's sections: figures and tables
    page.py         renders the page from ``report.html.j2`` and ``style.css``
"""
