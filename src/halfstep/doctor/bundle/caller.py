"""The caller of an operator in a traced step."""

from __future__ import annotations

from halfstep.doctor.record.sites import Mark  # noqa: TC001  # pydantic reads it at run time
from halfstep.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of an operator.

    Attributes:
        module: Path of the module that calls the operator; "" outside of modules. In a backward,
            the module that called the forward operator.
        module_kind: Class of this module.
        line: The line that calls the operator, possibly in a library; None if unknown.
        user_line: The line of the user's program from which `line` was reached; None if unknown.
        function: Name of the user-defined autograd function that calls the operator; "" for none.
        node: Name of the autograd node whose backward calls the operator; "" in a forward.
        forward_op: The forward operator that created this node; "" in a forward, or if unknown.
    """

    module: str = ""
    module_kind: str = ""
    line: Mark | None = None
    user_line: Mark | None = None
    function: str = ""
    node: str = ""
    forward_op: str = ""
