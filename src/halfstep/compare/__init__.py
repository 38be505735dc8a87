"""Many runs of one config that differ in recipe and seed, and the one table that they come to.

`plan` validates what is asked for, `grid` lays out the cells, `comparison` runs those that are
missing through `runner`, `directory` keeps them, `results` and `table` say what they came to. Runs
are processes of their own: this floor reads their directories and never enters the training loop.
"""
