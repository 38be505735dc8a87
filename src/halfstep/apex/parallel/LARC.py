"""`apex.parallel.LARC`: the module from which programs import `LARC`."""  # noqa: N999  (Apex's name)

from halfstep.optim.larc import LARC

__all__ = ["LARC"]
