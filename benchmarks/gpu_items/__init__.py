"""The items of `benchmarks/gpu.py`: what a GPU is measured for, in order of worth.

An item is a row of `ITEMS` and a script with a function `rows(at, *arguments)`, which yields a
dictionary for each figure or group of figures. Every row is on disk as soon as it is yielded. This
module imports nothing heavy, so that the queue starts at once.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


@dataclass(frozen=True)
class Item:
    """A part of the queue.

    Attributes:
        name: Its name, and that of its result: `results/gpu/items/NAME.json`.
        answers: The question that it answers.
        script: The file of its function `rows`, relative to this folder.
        seconds: The time after which it is ended.
        arguments: Further arguments of `rows`.
        needs: Packages that it cannot do without, besides torch.
        also: Files and folders, relative to the repository, whose change makes its result old, as
            a change of its script or of src/halfstep does.
    """

    name: str
    answers: str
    script: str
    seconds: int
    arguments: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    also: tuple[str, ...] = ()


@dataclass(frozen=True)
class At:
    """Where and how an item measures.

    Attributes:
        device: "cuda", or "cpu" for a dry run.
        toy: Whether sizes are as small as can be, so that an item takes seconds on a CPU.
        deadline: The value of `time.monotonic()` at which the item's time is over.
    """

    device: str
    toy: bool
    deadline: float

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return self.device == "cuda"

    def left(self) -> float:
        """Return the seconds before the deadline."""
        return self.deadline - time.monotonic()


OPERATOR_PIECES = 4
HELD_OUT_PIECES = 4
_CONFIGS = ("pydantic", "ruamel.yaml")

ITEMS = (
    Item(
        "tests",
        "Do the tests that need a GPU pass?",
        "gpu_tests.py",
        90,
        needs=("pytest", "hypothesis", "sklearn", *_CONFIGS),
        also=("tests",),
    ),
    Item(
        "loop",
        "Is the engine as fast as PyTorch's own loop, also where the host is the limit?",
        "loop.py",
        90,
        needs=("timm",),
    ),
    Item(
        "vit",
        "Is the engine as fast as PyTorch's own loop on a transformer?",
        "vit.py",
        60,
        needs=("timm",),
    ),
    Item(
        "graph",
        "How long is a small step that is replayed as one graph, and is it the eager step?",
        "graph.py",
        90,
        ("small",),
        needs=("timm",),
    ),
    Item("fp8", "What does FP8 gain on large linear layers?", "fp8.py", 60, ("eager",)),
    Item(
        "fp8-compiled",
        "Is compiled FP8 as fast as torchao's on large linear layers?",
        "fp8.py",
        90,
        ("compiled",),
        needs=("torchao",),
    ),
    Item("fp8-gpt", "What does FP8 gain on a compiled GPT?", "fp8.py", 90, ("gpt",)),
    Item(
        "fp8-images",
        "Is FP8 ever slower than bf16 on a ViT-L/16 and a ResNet-50?",
        "fp8.py",
        90,
        ("images",),
        needs=("timm",),
    ),
    Item(
        "fp8-shapes",
        "Does the table of gains know which layers are faster in FP8?",
        "fp8_shapes.py",
        90,
        also=("benchmarks/gpu_items/fp8_shapes.json",),
    ),
    Item(
        "activations",
        "What do compressed activations cost and save, beside other ways to save memory?",
        "activations.py",
        90,
        needs=("timm",),
    ),
    Item(
        "packing",
        "How fast are activations packed and unpacked, by bits and dtype?",
        "packing.py",
        90,
    ),
    Item("rounding", "What does AdamW cost with bf16 parameters?", "rounding.py", 80),
    *(
        Item(
            f"compiled-{recipe}",
            f"How fast is a compiled ResNet-50 in {recipe}?",
            "compiled.py",
            90,
            (recipe,),
            needs=("timm",),
        )
        for recipe in ("bf16", "fp16", "o2")
    ),
    Item(
        "graph-large",
        "Is a large step as fast captured as it is uncaptured, eager and compiled?",
        "graph.py",
        90,
        ("large",),
        needs=("timm",),
    ),
    *(
        Item(
            f"operators-{piece}",
            "How long are the commonest operators, for the predictions of advise?",
            "operators.py",
            90,
            (str(piece), str(OPERATOR_PIECES)),
            also=("benchmarks/operator_file.py",),
        )
        for piece in range(OPERATOR_PIECES)
    ),
    *(
        Item(
            f"held-out-{piece}",
            "How long are steps of models that no operator was listed from, to score predictions?",
            "models.py",
            90,
            (str(piece), str(HELD_OUT_PIECES)),
            needs=("timm",),
            also=("benchmarks/operator_list.py",),
        )
        for piece in range(HELD_OUT_PIECES)
    ),
    Item(
        "models",
        "How long are the steps of other models, for the cost model of advise?",
        "models.py",
        90,
        needs=("timm",),
    ),
    Item(
        "doctor",
        "How much longer is a step under doctor?",
        "doctor.py",
        60,
        needs=("timm", *_CONFIGS),
    ),
    Item(
        "rehearsal",
        "Does a GPU compute what the rehearsals of fp16 and FP8 on a CPU predict?",
        "rehearsal.py",
        60,
        needs=("sklearn",),
        also=("benchmarks/rehearsal.py", "benchmarks/fp8_distance.py"),
    ),
    Item(
        "trainer",
        "How long are the parts of a step of the trainer?",
        "trainer.py",
        60,
        needs=("sklearn", *_CONFIGS),
    ),
    Item(
        "compare",
        "Which half recipes are settled on cifar10/fast, with an A/A row and a control?",
        "compare.py",
        90,
        needs=("timm", "torchvision", "sklearn", "typer", "rich", "jinja2", *_CONFIGS),
    ),
    Item(
        "feed",
        "What share of training is spent waiting for images?",
        "feed.py",
        90,
        needs=("timm", "torchvision", "sklearn", *_CONFIGS),
        also=("benchmarks/feed.py", "benchmarks/loader.py"),
    ),
)
"""The items in order of worth: where time is short, the last ones are not begun."""
