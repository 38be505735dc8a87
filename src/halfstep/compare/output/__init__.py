"""Output of the rows: a terminal table, Markdown, LaTeX, CSV, JSON, plots and an HTML report."""
