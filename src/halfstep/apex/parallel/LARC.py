"""`from apex.parallel.LARC import LARC`: the module that programs import it from."""  # noqa: N999  (Apex's name)

from halfstep.optim.larc import LARC

__all__ = ["LARC"]
