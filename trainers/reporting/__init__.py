"""The page of ``evert report`` (``report.py``), and every figure of the project.

In reading order:

    run.py          a run folder, read
    panels.py       the figures that it has, and of which metric
    tokens.py       its tokens, and what they cost
    transcripts.py  its episodes to read, cut to length
    figures/        what is drawn, and how: of reports, runs, evaluations and sweeps
    sections.py     the page's sections: what runs are, figures and tables
    page.py         the page: ``report.html.j2``, ``style.css``
"""
