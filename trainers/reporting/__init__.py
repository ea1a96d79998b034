"""The page of ``evert report`` (``report.py``), and every figure of the project.

In reading order:

    run.py          a run folder, read
    tokens.py       its tokens, and what they cost
    transcripts.py  its episodes to read, cut to length
    figures/        what is drawn, and how: of reports, runs, evaluations and sweeps
    comparison.py   what runs are, and where they differ
    sections.py     the page's sections: figures and tables
    page.py         the page: ``report.html.j2``, ``report.css.j2``
"""
