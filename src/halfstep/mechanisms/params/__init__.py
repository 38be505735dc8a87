"""Parameters in a half format: the field `params`."""
