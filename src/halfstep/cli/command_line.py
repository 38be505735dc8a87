"""A command line that the parser refuses, divided into its command, options and other words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A command line, divided at the options.

    Attributes:
        name: The names of the program and its subcommands, such as "halfstep data check".
        command: The command of that name.
        words: The words after the name.
        parts: Each option with the words up to the next option, of which the first is its value
            unless the option is a switch; None instead of an option for the words before.
    """

    name: str
    command: Any
    words: list[str]
    parts: list[tuple[Any, list[str]]]

    @classmethod
    def of(cls, program: Any, argv: Sequence[str]) -> Self:
        """Divide the arguments after the program's name; `program` is its command."""
        name, command = "halfstep", program
        words = [word for word in argv if word != "--debug"]
        while words and words[0] in commands(command):
            command = commands(command)[words[0]]
            name = f"{name} {words.pop(0)}"
        options = {flag: parameter for parameter in command.params for flag in parameter.opts}
        parts: list[tuple[Any, list[str]]] = [(None, [])]
        rest = iter(words)
        for word in rest:
            flag, _, value = word.partition("=")
            option = options.get(flag) if flag.startswith("-") else None
            if option is None:
                parts[-1][1].append(word)
            elif value or option.is_flag:
                parts.append((option, [value] if value else []))
            else:
                parts.append(
                    (
                        option,
                        [following for following in [next(rest, None)] if following is not None],
                    )
                )
        return cls(name, command, words, parts)

    @property
    def known(self) -> dict[str, Any]:
        """The options of the command, and its arguments by their names in the help."""
        params = self.command.params
        return {
            name: parameter
            for parameter in params
            for name in (*parameter.opts, parameter.metavar)
            if name
        }

    def values(self, option: Any) -> list[str]:
        """Return the values that are given for an option."""
        return [words[0] for parameter, words in self.parts if parameter is option and words]

    def loose(self) -> list[list[str]]:
        """Return the words of each part that are no value of its option."""
        return [
            words if parameter is None or parameter.is_flag else words[1:]
            for parameter, words in self.parts
        ]

    def following(self, option: str) -> str:
        """Return the value that is typed for an option, which may be unknown; "" without one."""
        for index, word in enumerate(self.words):
            flag, _, value = word.partition("=")
            if flag == option:
                following = self.words[index + 1] if index + 1 < len(self.words) else ""
                return value or ("" if following.startswith("-") else following)
        return ""


def commands(group: Any) -> dict[str, Any]:
    """Return the subcommands of a command, by name."""
    subcommands: dict[str, Any] = getattr(group, "commands", {})
    return subcommands
