"""Every config that ships can be had by its name, and builds what it says."""

import pickle

import numpy as np
import pytest
import torch
from PIL import Image

from halfstep.train import data
from halfstep.train.build import models, optim, schedules
from halfstep.train.config.files import load, shipped

NAMES = {
    "cifar10/alexnet_adamw_plateau",
    "cifar10/fast",
    "cifar10/resnet18",
    "digits",
    "imagenet/resnet50",
    "imagenet/vit_small",
    "imagenette/resnet18",
    "leaves/resnet18_b16x8",
}
CPU = torch.device("cpu")


def write_image(path, number):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(number).integers(0, 256, (40, 48, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def write_folders(root):
    for number, name in enumerate(("train/a", "train/b", "val/a", "val/b")):
        for index in range(2):
            write_image(root / name / f"{index}.jpg", 10 * number + index)


def write_csv(root):
    for name, start in (("train_fold0", 0), ("valid_fold0", 4)):
        rows = [(f"{start + index}.jpg", "ab"[index % 2]) for index in range(4)]
        for index, (image, _) in enumerate(rows):
            write_image(root / image, start + index)
        lines = "".join(f"{image},{label}\n" for image, label in rows)
        (root / f"{name}.csv").write_text(f"image,label\n{lines}")


def write_cifar10(root):
    folder = root / "cifar-10-batches-py"
    folder.mkdir()
    content = {"data": np.zeros((4, 3072), np.uint8), "labels": [0, 1, 2, 3]}
    for name in [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]:
        (folder / name).write_bytes(pickle.dumps(content, 2))
    names = {"label_names": [str(number) for number in range(10)]}
    (folder / "batches.meta").write_bytes(pickle.dumps(names, 2))


SETS = {"folder": (write_folders, []), "csv": (write_csv, []), "digits": (lambda _: None, [])}
SETS["cifar10"] = write_cifar10, ["data.verify=false"]


def test_the_configs_that_ship_are_these():
    assert set(shipped()) == NAMES


@pytest.mark.parametrize("name", sorted(NAMES))
def test_config_says_what_it_is_and_why(name):
    text = shipped()[name].read_text()
    assert 20 <= len(load(name).description) <= 100
    assert text.startswith("description: ")
    assert "# " in text
    assert load(name).name == name


@pytest.mark.parametrize("name", sorted(NAMES))
def test_config_builds_data_model_optimizer_and_schedule(name, tmp_path):
    kind = load(name).data.name
    write, options = SETS[kind]
    write(tmp_path)
    options = [*options, "data.workers=0"]
    config = load(name, options if kind == "digits" else [*options, f"data.root={tmp_path}"])
    loaded = data.load(config.data, batch_size=2, seed=0, device=CPU)
    images, labels = next(loaded.train.epoch(1))
    images, labels = loaded.prepare(images, labels, device=CPU, train=True)
    assert images.shape == (2, *loaded.image_shape)
    with torch.device("meta"):
        model = models.build(
            config.model, classes=len(loaded.classes), image_shape=loaded.image_shape
        )
        assert model(images.to("meta")).shape == (2, len(loaded.classes))
    optimizer = optim.build_optimizer(config.optimizer, model, fused=False)
    schedules.build(config.schedule, optimizer, steps=1000, steps_per_epoch=10)
    assert optimizer.param_groups[0]["lr"] > 0


def test_learning_rate_of_the_large_batches_is_the_papers():
    config = load("imagenet/resnet50", ["accumulate=16"])
    factor = config.lr_scaling.factor(config.batch_size * config.accumulate)
    assert config.optimizer.lr * factor == pytest.approx(1.6)
    assert config.epochs == 90
    assert config.schedule.warmup_epochs == 5


def test_leaves_make_steps_of_128_images():
    config = load("leaves/resnet18_b16x8", ["fp16=True", "data.val.limit=500"])
    assert (config.batch_size, config.accumulate) == (16, 8)
    assert config.lr_scaling.factor(128) == 1
    assert config.build_recipe().name == "fp16"
    assert config.data.val.limit == 500
    assert config.data.val.ann_file == "valid_fold0.csv"


def test_mixed_labels_reach_the_vision_transformer():
    settings = load("imagenet/vit_small").data.augment.settings()
    assert (settings.mixup, settings.cutmix, settings.erase) == (0.8, 1.0, 0.25)
