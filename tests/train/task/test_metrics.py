import csv
import math

import pytest
import torch
from sklearn.metrics import f1_score
from torch.nn import functional
from torchmetrics import MetricCollection

from halfstep.train.task.metrics import Metrics, by_class, write_tables

CPU = torch.device("cpu")


def measured(classes, images=40, batch=7):
    """Return metrics of random logits, and the logits and labels themselves."""
    torch.manual_seed(classes)
    logits, labels = torch.randn(images, classes), torch.randint(classes, (images,))
    metrics = Metrics(classes, CPU)
    for part in zip(logits.split(batch), labels.split(batch), strict=True):
        metrics.add(*part)
    return metrics, logits, labels


def test_figures_are_those_of_all_images_at_once():
    metrics, logits, labels = measured(9)
    assert metrics.loss == pytest.approx(functional.cross_entropy(logits, labels).item())
    assert metrics.top1 == pytest.approx((logits.argmax(1) == labels).float().mean().item())
    among_five = (logits.topk(5).indices == labels[:, None]).any(1)
    assert metrics.top5 == pytest.approx(among_five.float().mean().item())
    assert metrics.top1 < metrics.top5 < 1


def test_macro_f1_counts_every_class_that_occurs_alike():
    metrics, logits, labels = measured(9)
    wanted = f1_score(labels, logits.argmax(1), average="macro")
    assert metrics.macro_f1 == pytest.approx(wanted)
    assert metrics.macro_f1 != pytest.approx(metrics.top1)


def test_rows_of_the_confusion_matrix_are_true_and_columns_predicted():
    metrics, logits, labels = measured(3)
    wanted = torch.zeros(3, 3, dtype=torch.int64)
    for true, predicted in zip(labels.tolist(), logits.argmax(1).tolist(), strict=True):
        wanted[true, predicted] += 1
    assert torch.equal(metrics.confusion, wanted)
    assert not torch.equal(wanted, wanted.T)


@pytest.mark.parametrize(("classes", "has"), [(5, False), (6, True)])
def test_top_5_is_measured_where_there_are_more_than_5_classes(classes, has):
    assert (measured(classes)[0].top5 is not None) is has


def test_confusion_of_very_many_classes_is_left_out():
    metrics = Metrics(2001, CPU)
    metrics.add(torch.zeros(1, 2001), torch.tensor([0]))
    assert metrics.confusion is None
    assert metrics.top1 == 1.0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_loss_of_narrow_logits_is_computed_in_fp32_even_under_autocast(dtype):
    logits = torch.tensor([[60000.0, 0.0, 1.0], [3.0, 1.0, 30000.0]], dtype=dtype)
    labels = torch.tensor([1, 0])
    metrics = Metrics(3, CPU)
    with torch.autocast("cpu", torch.bfloat16):
        metrics.add(logits, labels)
    wanted = functional.cross_entropy(logits.double(), labels).item()
    assert metrics.loss == pytest.approx(wanted, rel=1e-6)


def test_tables_hold_every_class_and_every_count(tmp_path):
    confusion = torch.tensor([[3, 1, 0], [0, 2, 0], [0, 0, 0]])
    classes = ('a "b"', "c,d", "e")
    assert by_class(confusion, classes)[:2] == [('a "b"', 4, 3, 0.75), ("c,d", 2, 2, 1.0)]
    assert math.isnan(by_class(confusion, classes)[2][3])
    write_tables(tmp_path, confusion, classes)
    with (tmp_path / "classes.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["class", "images", "right", "recall"]
    assert rows[1:] == [
        ['a "b"', "4", "3", "0.750000"],
        ["c,d", "2", "2", "1.000000"],
        ["e", "0", "0", "nan"],
    ]
    with (tmp_path / "confusion.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["true \\ predicted", *classes]
    assert [[int(count) for count in row[1:]] for row in rows[1:]] == confusion.tolist()
    assert not list(tmp_path.glob(".*"))


def test_many_small_batches_are_ranked_in_one_pass_and_large_ones_each_alone(monkeypatch):
    passes = []
    update = MetricCollection.update

    def counted(self, logits, labels):
        passes.append(len(labels))
        update(self, logits, labels)

    monkeypatch.setattr(MetricCollection, "update", counted)
    whole, logits, labels = measured(9, images=200, batch=8)
    assert whole.top1 == pytest.approx((logits.argmax(1) == labels).float().mean().item())
    assert whole.macro_f1 > 0  # nothing is counted twice
    assert passes == [200]
    monkeypatch.setattr("halfstep.train.task.metrics._AT_ONCE", 9 * 10)
    again, _, _ = measured(9, images=200, batch=8)
    assert again.confusion.sum() == 200
    assert passes[1:] == [16] * 12 + [8]
    assert (again.top1, again.loss) == (whole.top1, whole.loss)
