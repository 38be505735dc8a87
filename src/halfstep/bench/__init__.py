"""What makes training fast or slow on this machine, measured for anybody's config.

`loader`, `threads`, `launch` and `step` measure; their settings take `turns`, `sweep` and
`dissection` turn the figures into an `outcome`, and `table`, `report` and `directory` show and keep
it. Training is driven here in the order of `halfstep.train`, or started as `halfstep train`.
"""
