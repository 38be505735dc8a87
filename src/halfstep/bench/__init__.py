"""Measures what makes training fast or slow on this machine, for any config.

`loader`, `threads`, `launch` and `step` measure, each setting in turn (`turns`). `sweep` and
`dissection` turn the figures into an `outcome`; `table`, `report` and `directory` print and store
it. `loader` and `step` run parts of `halfstep.train` in this process; `threads` and `launch` start
`halfstep train` in separate processes.
"""
