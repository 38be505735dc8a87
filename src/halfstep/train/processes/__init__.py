"""Processes that train one run together: starting, joining, naming, and communication."""
