"""Runs of one config under several recipes and seeds, and one table with their results.

`plan` validates the request, and `grid` creates the cells; a cell is one run. `comparison` runs the
missing cells through `runner`, `directory` manages their files, and `results` and `table` report
their results. Each run is a separate process: this package reads the run directories, and never
calls the training loop.
"""
