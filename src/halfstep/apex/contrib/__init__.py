"""`apex.contrib`: the parts that programs with `amp` use, built on counterparts in torch."""
