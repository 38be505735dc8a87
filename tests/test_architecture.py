"""The shape of the house: imports point downward only, and what is instant needs no torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

import halfstep
from halfstep.recipe import PARTS

SOURCE = Path(halfstep.__file__).parent
FLOORS = {
    "recipe": 2,
    "doctor": 2,
    "formats": 0,
    "loss_scale": 0,
    "step_observer": 0,
    "errors": 0,
    "caller": 0,
    "callable_module": 0,
    "lazy_dataclass": 0,
    "files": 0,
    "yaml_text": 0,
    "plurals": 0,
    "versions": 0,
    "disturbance": 0,
    "statistics": 0,
    "looks": 0,
    "kernels": 0,
    "mechanisms": 1,
    "feed": 1,
    "optim": 1,
    "layers": 1,
    "engine": 3,
    "train": 4,
    "show": 4,
    "apex": 4,
    "migrate": 4,
    "compare": 5,
    "bench": 5,
    "advise": 5,
    "lightning": 5,
    "testing": 5,
    "transformers": 5,
    "cli": 6,
    "__main__": 6,
}
# What a part may not know though it is not above: compare starts training as processes.
STRANGERS = {
    "bench": ("compare",),
    "compare": ("train.loop", "train.build.setup", "train.after.evaluate", "bench"),
    "train": ("apex",),
    "apex": ("train",),
    "migrate": ("apex", "train"),
}


# Mechanisms whose parts are building blocks of others: the arithmetic of loss scaling, formats of
# parameters and their masters (FSDP2, Apex), and the names of operators (advise).
BUILDING_BLOCKS = {
    "engine": ("loss_scale", "master_weights", "params"),
    "apex": ("loss_scale", "master_weights", "params"),
    "advise": ("loss_scale", "exceptions"),
}


# The rooms of the engine, from the lowest: a room imports from itself and from rooms before it. A
# subfolder is a room, and so are the files of its root that are in one layer.
ENGINE_ROOMS: dict[str, tuple[str, ...]] = {
    "processes": ("processes",),
    "foundations": (
        *("average", "closure", "compatibility", "evaluate", "guard", "hooks", "misuse"),
        *("recompute", "thread_state"),
    ),
    "window": ("window",),
    "over windows": ("scales", "selection"),
    "passes": ("passes",),
    "parallel": ("parallel",),
    "closing": ("closing",),
    "assembly": ("assemble",),
    "plan": ("plan",),
    "graphs": ("graphs",),
    "the engine": ("engine", "state"),
    "checkpoints": ("checkpoints",),
    "public names": ("",),
}


def room(path: Path) -> str:
    """Return the part of the package that a file belongs to."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


@cache
def import_nodes(path: Path) -> list[ast.Import | ast.ImportFrom]:
    """Return the imports of a file, anywhere in it; several tests read them."""
    nodes = ast.walk(ast.parse(path.read_text()))
    return [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]


def nodes_of(path: Path, *words: str) -> list[ast.AST]:
    """Return the nodes of a file that has one of these words, for only those are worth parsing."""
    text = path.read_text()
    return [*ast.walk(ast.parse(text))] if any(word in text for word in words) else []


def imports(path: Path) -> list[tuple[int, str]]:
    """Return the line and name ("train.loop") of what a file imports of halfstep, anywhere."""
    found = []
    for node in import_nodes(path):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            assert node.level == 0, f"{path}:{node.lineno} imports relatively"
            names = [node.module or ""]
            if node.module == "halfstep":
                names = [f"halfstep.{alias.name}" for alias in node.names]
        mine = [name for name in names if name.startswith("halfstep.")]
        found += [(node.lineno, name.removeprefix("halfstep.")) for name in mine]
    return found


def module_name(path: Path) -> str:
    """Return what a file is imported as, without "halfstep."; the public face is ""."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def imported_files(path: Path, known: set[str]) -> set[str]:
    """Return the files of the package that a file imports anywhere, for its types alone too."""
    found = set()
    for node in import_nodes(path):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[2] for alias in node.names if is_ours(alias.name)}
        elif is_ours(node.module or ""):
            base = node.module.partition(".")[2]
            names = {f"{base}.{alias.name}".lstrip(".") for alias in node.names}
            found |= {name if name in known else base for name in names}
    return (found & known) - {module_name(path)}


def is_ours(name: str) -> bool:
    return name == "halfstep" or name.startswith("halfstep.")


def circles(edges: dict[str, set[str]]) -> list[set[str]]:
    """Return the groups of files of which each imports each other, over any number of others."""
    names = list(edges)
    matrix = [[other in edges[name] for other in names] for name in names]
    count, labels = connected_components(csr_array(matrix), connection="strong")
    groups: list[set[str]] = [set() for _ in range(count)]
    for name, label in zip(names, labels, strict=True):
        groups[label].add(name)
    return [group for group in groups if len(group) > 1]


FILES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


def test_every_part_has_a_floor_and_every_floor_is_there() -> None:
    assert {room(path) for path in FILES} == FLOORS.keys()


def test_only_its_own_part_asks_a_recipe_for_a_field() -> None:
    for path in FILES:
        if path.is_relative_to(SOURCE / "mechanisms"):
            continue
        for node in nodes_of(path, "recipe"):
            asked = None
            if isinstance(node, ast.Attribute):
                asked = node.attr, ast.unparse(node.value)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                first = node.args[0] if node.args else None
                if node.func.attr == "get" and isinstance(first, ast.Constant):
                    asked = first.value, ast.unparse(node.func.value)
            if asked is not None and asked[0] in PARTS:
                assert not asked[1].endswith("recipe"), f"{path}:{node.lineno} reads {asked[0]}"


def test_code_outside_asks_for_no_mechanism_by_name() -> None:
    for path in FILES:
        if room(path) == "mechanisms":
            continue
        for line, name in imports(path):
            parts = name.split(".")
            if parts[0] == "mechanisms" and len(parts) > 2:
                assert parts[1] in BUILDING_BLOCKS.get(room(path), ()), f"{path}:{line} {name}"


def test_every_stranger_exists() -> None:
    modules = {module_name(path) for path in FILES}
    for part, strangers in STRANGERS.items():
        assert {part, *strangers} <= modules


def test_no_two_files_import_each_other_in_a_circle() -> None:
    every = [SOURCE / "__init__.py", *FILES]
    known = {module_name(path) for path in every}
    assert not circles({module_name(path): imported_files(path, known) for path in every})


def test_rooms_of_one_part_do_not_import_each_other_in_a_circle() -> None:
    every = [SOURCE / "__init__.py", *FILES]
    known = {module_name(path) for path in every}
    edges: dict[str, set[str]] = {}
    for path in FILES:
        here = path.relative_to(SOURCE).parts[:-1]
        if here[:1] == ("apex",):
            continue  # Its rooms are those of Apex's API.
        for other in imported_files(path, known):
            there = tuple(other.split("."))
            if len(here) > 1 and len(there) > 2 and here[0] == there[0] and here[1] != there[1]:
                edges.setdefault(".".join(here[:2]), set()).add(".".join(there[:2]))
    rooms = edges.keys() | {room for others in edges.values() for room in others}
    assert not circles({room: edges.get(room, set()) for room in rooms})


def engine_room(module: str) -> str:
    """Return the room of a module of the engine, such as "engine.closing.fused"."""
    place = f"{module}.".split(".")[1]
    (found,) = [name for name, places in ENGINE_ROOMS.items() if place in places]
    return found


def test_every_entry_of_the_engines_rooms_exists() -> None:
    engine = SOURCE / "engine"
    there = {path.stem for path in engine.iterdir() if path.name != "__pycache__"} - {"__init__"}
    listed = [place for places in ENGINE_ROOMS.values() for place in places if place]
    assert sorted(listed) == sorted(there)


def test_rooms_of_the_engine_import_from_lower_rooms_only() -> None:
    """So no two of them import each other; the files of the root are in rooms, too."""
    known = {module_name(path) for path in FILES}
    order = list(ENGINE_ROOMS)
    for path in FILES:
        if room(path) != "engine":
            continue
        here = order.index(engine_room(module_name(path)))
        for other in imported_files(path, known):
            if other.split(".")[0] == "engine":
                there = order.index(engine_room(other))
                assert there <= here, f"{path} imports {other}, of a higher room"


def test_a_circle_over_a_third_file_is_found() -> None:
    edges = {"first": {"second"}, "second": {"third"}, "third": {"first"}, "outside": {"first"}}
    assert circles(edges) == [{"first", "second", "third"}]
    assert not circles({**edges, "third": set()})


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_downward_only(path: Path) -> None:
    here = room(path)
    for line, name in imports(path):
        other = name.split(".")[0]
        if other == here or other not in FLOORS:
            continue  # Itself, or a name of the public face such as __version__.
        assert FLOORS[other] <= FLOORS[here], f"{path}:{line} imports {name}, which is above"
        for stranger in STRANGERS.get(here, ()):
            assert not f"{name}.".startswith(f"{stranger}."), f"{path}:{line} imports {name}"


def test_only_the_engine_calls_backward_and_steps_an_optimizer() -> None:
    for path in FILES:
        if room(path) in {"engine", "mechanisms", "apex"}:
            continue
        for node in nodes_of(path, "backward", "step"):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                owner = ast.unparse(node.func.value)
                assert node.func.attr != "backward" or owner.endswith("engine"), f"{path}: {owner}"
                assert node.func.attr != "step" or not owner.endswith("optimizer"), f"{path}"


HELP = """
from halfstep.cli import main
sys.argv[1:] = ['--help']
try:
    main()
except SystemExit:
    pass
"""


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    "program",
    [
        "import halfstep; halfstep.recipe('fp16+tf32')",
        "import halfstep.recipe, halfstep.formats",
        "import halfstep.compare.rows.rows",
        HELP,
    ],
    ids=["import", "ground floor", "rows of a comparison", "help"],
)
def test_what_must_be_instant_does_not_import_torch(program: str) -> None:
    done = run(f"import sys\n{program}\nprint('torch' in sys.modules, file=sys.stderr)")
    assert done.returncode == 0, done.stderr
    assert done.stderr.strip() == "False"


def test_the_public_face_offers_what_it_names() -> None:
    for name in halfstep.__all__:
        assert getattr(halfstep, name)
    with pytest.raises(AttributeError, match="no attribute 'Engin'"):
        _ = halfstep.Engin


def test_modules_say_what_they_are_for_and_stay_readable() -> None:
    for path in FILES:
        text = path.read_text()
        assert ast.get_docstring(ast.parse(text)), f"{path} has no docstring"
        assert path.stem not in {"utils", "helpers", "common", "misc"}


def test_what_is_slow_to_import_and_seldom_needed_is_imported_where_it_is_used():
    seldom = {"sklearn", "scipy", "matplotlib", "tensorboard", "torch.utils.tensorboard"}
    for path in SOURCE.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            slow = [name for name in names for each in seldom if f"{name}.".startswith(f"{each}.")]
            assert not slow, f"{path}:{node.lineno} imports {slow[0]} when it is imported itself"
