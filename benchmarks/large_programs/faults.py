"""What a program is, what a fault in it, and what doctor said of it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Exchange:
    """Text of a file that is replaced.

    Attributes:
        file: A path in the program, or the name of a module.
        old: Text that is in it.
        new: What is written instead.
    """

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Program:
    """A program.

    Attributes:
        name: What tables call it.
        entry: The file that is run.
        base: What is exchanged so that it runs in fp16 on a CPU.
        arguments: Of its command line.
        data: The option that takes the directory of its data; "" for none.
        out: The option that takes the directory of its results; "" for none.
        text: The program itself, where it is not in a checkout.
    """

    name: str
    entry: str
    base: tuple[Exchange, ...] = ()
    arguments: str = ""
    data: str = ""
    out: str = ""
    text: str = ""


@dataclass(frozen=True)
class Fault:
    """A fault, and what doctor should say.

    Attributes:
        program: The program that it is put into.
        row: Of the catalogue of causes.
        code: The cause.
        exchanges: How it is put in.
        line: Part of the line to be named; "" where no line is at fault.
        module: End of the path of the module to be named; "" where none is.
        arguments: More of the command line.
    """

    program: str
    row: int
    code: str
    exchanges: tuple[Exchange, ...]
    line: str = ""
    module: str = ""
    arguments: str = ""

    @property
    def name(self) -> str:
        """What tables call it."""
        return f"{self.program}: {self.code}"


@dataclass(frozen=True)
class Outcome:
    """What doctor said of a program.

    Attributes:
        program: The program.
        row: Of the fault in it; None for the program as it is.
        expected: The cause; "nothing" for the program as it is.
        given: The causes that doctor named, the surest first.
        line: The line that it named with the cause.
        module: The module that it named with the cause.
        line_is_right: Whether that is the fault's line; None where none is at fault.
        module_is_right: Whether that is the fault's module; None where none is.
    """

    program: str
    row: int | None
    expected: str
    given: list[str] = field(default_factory=list)
    line: str = ""
    module: str = ""
    line_is_right: bool | None = None
    module_is_right: bool | None = None
