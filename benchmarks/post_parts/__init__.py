"""The parts of `benchmarks/posts.py`: which runs repeat each post, and what the post reports.

The figures of the posts' tables are not repeated here, because their GPUs and images were others:
the column "the post" says what became of the run there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["train", "doctor", "loop", "elsewhere"]


@dataclass(frozen=True)
class Piece:
    """A row of a part's table, and how it is made.

    Attributes:
        name: The name of the row; no other row of the part has it.
        kind: "train" trains a config; "doctor" watches a program; "loop" times a loop of the
            cookbook beside PyTorch's; "elsewhere" needs more than one GPU, and is not run.
        command: The config and its options; or the program and its arguments; or the loop; or the
            command that would run it.
        post: What the post reports of such a run.
    """

    name: str
    kind: Kind
    command: tuple[str, ...]
    post: str = ""


@dataclass(frozen=True)
class Part:
    """The runs that repeat a post.

    Attributes:
        title: The heading of its table.
        needs: The folder of images that it reads, in the folder of all data; "" for none.
        pieces: Its rows.
    """

    title: str
    needs: str
    pieces: tuple[Piece, ...]


def _train(name: str, post: str, config: str, *options: str) -> Piece:
    return Piece(name, "train", (config, *options), post)


_LEAVES = (
    *("batch_size=128", "accumulate=1", "epochs=20", "model.channels_last=true"),
    *("data.root={data}/classify-leaves", "data.train.ann_file={lists}/train_fold0.csv"),
    *("data.val.ann_file={lists}/valid_fold0.csv", "data.cache_images=device"),
)
_IMAGENETTE = (
    *("model.name=timm:resnet50", "data.resolution=224", "data.root={data}/imagenette224"),
    *("data.cache_images=device", "lr_scaling.base_batch=256", "optimizer.lr=0.1", "epochs=30"),
    "on_nonfinite=stop",
)
_ALEXNET = (
    *("data.root={data}", "data.verify=false", "data.cache_images=device"),
    *("data.cache_images_gigabytes=12", "epochs=10", "checkpoints.every_steps=200"),
)


def _of_total(recipe: str, total: int, post: str, rate: float = 1.0) -> Piece:
    """Return a run with `total` images a step, and its rate scaled with them and by a factor."""
    batch = min(total, 512)
    options = (f"batch_size={batch}", f"accumulate={total // batch}", f"optimizer.lr={0.1 * rate}")
    more = f", {rate:g}x the rate" if rate != 1 else ""
    return _train(
        f"{recipe}, {total} images{more}",
        post,
        "imagenette/resnet18",
        *_IMAGENETTE,
        f"recipe={recipe}",
        *options,
    )


PARTS = {
    "leaves": Part(
        "ResNet-18 on the leaves: fp16 beside fp32, and the double step",
        "classify-leaves",
        (
            *(
                _train(
                    f"{recipe}, rate {rate}",
                    "trains" if recipe == "fp32" else "NaN, with a second optimizer.step()",
                    "leaves/resnet18_b16x8",
                    *_LEAVES,
                    f"recipe={recipe}",
                    f"optimizer.lr={rate}",
                )
                for rate in (0.1, 0.01, 0.001)
                for recipe in ("fp32", "fp16")
            ),
            Piece(
                "the double step, under doctor",
                "doctor",
                ("examples/leaves_double_step.py", "{data}/classify-leaves"),
                "found after days",
            ),
            Piece(
                "8 GPUs, 16 images each",
                "elsewhere",
                ("halfstep train leaves/resnet18_b16x8 --processes 8 --options accumulate=1",),
                "trains",
            ),
        ),
    ),
    "imagenette": Part(
        "ResNet-50 on Imagenette at 224 pixels: larger batches and rates",
        "imagenette224",
        (
            *(
                _of_total("half-bn32", total, "trains" if total < 1024 else "non-finite")
                for total in (256, 512, 1024, 2048, 4096)
            ),
            *(_of_total(recipe, 4096, "trains") for recipe in ("o1", "o2", "fp16", "tf32")),
            _of_total("o3", 4096, "non-finite"),
            *(_of_total("half-bn32", 4096, "non-finite", rate) for rate in (4.0, 16.0)),
            *(
                _train(
                    f"{recipe}, 4096 images at once",
                    post,
                    "imagenette/resnet18",
                    *_IMAGENETTE,
                    *(f"recipe={recipe}", "batch_size=4096", "max_steps=10"),
                )
                for recipe, post in (
                    ("fp16", "out of memory"),
                    ("fp16+act4", "2-bit activations fit, too slowly"),
                )
            ),
            Piece(
                "8 GPUs, 512 images each",
                "elsewhere",
                ("halfstep train imagenet/resnet50 --recipe o2 --processes 8 --batch-size 512",),
                "trains",
            ),
        ),
    ),
    "alexnet": Part(
        "AlexNet on CIFAR-10 at 227 pixels",
        "cifar-10-batches-py",
        tuple(
            _train(recipe, "trains", "cifar10/alexnet_adamw_plateau", *_ALEXNET, f"recipe={recipe}")
            for recipe in ("fp32", "tf32", "fp16", "bf16")
        ),
    ),
    "levels": Part(
        "Apex's levels: memory and speed of a ResNet-50 with 256 images of 224 pixels",
        "imagenette224",
        tuple(
            _train(
                level,
                post,
                "imagenette/resnet18",
                *_IMAGENETTE,
                *(f"recipe={level}", "batch_size=256", "max_steps=80"),
            )
            for level, post in (
                ("o0", "the baseline"),
                ("o1", "faster, less memory"),
                ("o2", "faster, less memory"),
                ("o3", "the fastest"),
            )
        ),
    ),
    "cookbook": Part(
        "The cookbook's loops, beside PyTorch's own",
        "",
        tuple(
            Piece(name, "loop", (name,), "a loop of torch.amp")
            for name in ("plain", "clipped", "accumulated", "gradient penalty")
        ),
    ),
}
