"""`apex.contrib`, as far as programs with `amp` use it: what torch has under other names."""
