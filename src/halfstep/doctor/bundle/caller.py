"""The caller of an operator in a traced step."""

from __future__ import annotations

from dataclasses import dataclass

from halfstep.doctor.record.sites import Mark  # noqa: TC001  # pydantic reads it at run time


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of an operator.

    Attributes:
        module: Path of the module; "" outside of one.
        module_kind: Its class.
        line: The line, possibly in a library.
        user_line: The user's line that led there.
        function: The program's own autograd function; "" for none.
        node: In a backward, the autograd node; "" in a forward.
        forward_op: In a backward, the forward operator of its node.
    """

    module: str = ""
    module_kind: str = ""
    line: Mark | None = None
    user_line: Mark | None = None
    function: str = ""
    node: str = ""
    forward_op: str = ""
