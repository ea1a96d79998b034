"""The web page that shows runs and episodes, served by ``evert view`` or saved by ``evert report``.

In reading order:

    lines.py              parses the lines of a run's files into index entries
    incremental_index.py  an index for quickly finding episodes in the files
    asking.py             queries against the index
    tokens.py             counts a run's tokens and computes their cost
    runs.py               prepares the data of a run folder for the page
    pieces.py             decodes the text of each sampled token
    answers.py            the page's API
    server.py             the HTTP server
    report_page.py        saves the page and its data as a single file

The page consists of ``page.html``, ``view.js`` and ``view.css``. Curves are drawn with uPlot 1.6
(``uplot.js`` and ``uplot.css``, unmodified; MIT license in ``uplot-license.txt``).
"""
