"""The parts of ``evert report`` (``report.py``).

In reading order:

    run.py          a run folder, read
    tokens.py       its tokens, and what they cost
    transcripts.py  episodes to read, cut to length
    figures/        what is drawn, and how
    sections.py     what stands where, as data
    metrics.py      metrics by step
    text.py         numbers and long texts, as shown
    page.py         the page: ``report.html.j2``, ``report.css.j2``
"""
