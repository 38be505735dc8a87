"""A loss of boxes gets centres and sizes, and needs corners."""

import torch
from torch import nn
from torch.nn import functional
from torchvision import ops, tv_tensors
from torchvision.transforms import v2

from doctor.loops import batches

CODE = "ARGUMENTS_OF_ANOTHER_KIND"
CENTRES = torch.tensor([0.6, 0.5, 0.2, 0.3])


def train(loss_of, *, outputs: int = 4, count: int = 6) -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, outputs)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for images, labels in batches(count):
        optimizer.zero_grad()
        loss_of(model(images), labels).backward()
        optimizer.step()


def boxes_of(labels: torch.Tensor) -> torch.Tensor:
    """Return boxes as centres, widths and heights."""
    return CENTRES + 0.05 * labels[:, None]


def corners(boxes: torch.Tensor) -> torch.Tensor:
    return ops.box_convert(boxes, "cxcywh", "xyxy")


def broken() -> None:
    train(
        lambda outputs, labels: ops.generalized_box_iou_loss(
            outputs.sigmoid(), boxes_of(labels), reduction="mean"
        )
    )


def mended() -> None:
    train(
        lambda outputs, labels: ops.generalized_box_iou_loss(
            corners(outputs.sigmoid()), corners(boxes_of(labels)), reduction="mean"
        )
    )


class Criterion(nn.Module):
    """A loss of boxes and their places, as a module."""

    def forward(self, outputs, targets):
        loss = ops.distance_box_iou_loss(outputs, targets, reduction="sum")
        return loss + functional.l1_loss(outputs, targets)


def broken_in_a_module() -> None:
    criterion = Criterion()
    train(lambda outputs, labels: criterion(outputs.sigmoid(), boxes_of(labels)))


def broken_in_the_overlap_of_all_pairs() -> None:
    def loss_of(outputs, labels):
        outputs, targets = outputs.sigmoid(), boxes_of(labels)
        with torch.no_grad():
            sizes = torch.tensor([0.5, 0.5, 0.1, 0.1])
            weights = 1 - ops.box_iou(outputs * sizes, targets).amax(1).clamp(0, 1)
        return (weights[:, None] * (outputs - targets).abs()).mean()

    train(loss_of)


def signs(labels: torch.Tensor) -> torch.Tensor:
    return (labels > 0).float()


def broken_by_zeros_of_a_margin() -> None:
    loss = nn.SoftMarginLoss()
    train(lambda outputs, labels: loss(outputs[:, 0], signs(labels)))


def broken_by_zeros_of_a_cosine() -> None:
    def loss_of(outputs, labels):
        return functional.cosine_embedding_loss(outputs, outputs.roll(1, 0), signs(labels))

    train(loss_of)


def broken_by_scaled_counts() -> None:
    def loss_of(outputs, labels):
        counts = labels - labels.float().mean()
        return functional.poisson_nll_loss(outputs[:, 0], counts)

    train(loss_of)


def broken_by_boundaries_that_fall() -> None:
    edges = torch.tensor([1.0, 0.3, -0.3, -1.0])

    def loss_of(outputs, labels):
        del labels
        bins = torch.bucketize(outputs.detach()[:, 0].contiguous(), edges)
        return functional.cross_entropy(outputs, bins.clamp(max=3))

    train(loss_of)


def broken_by_half_of_a_matrix() -> None:
    mixed = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))

    def loss_of(outputs, labels):
        values = torch.linalg.eigvalsh(mixed + outputs.mT @ outputs)
        return 0.001 * values.square().mean() + 0 * labels.sum()

    train(loss_of)


def healthy_signs() -> None:
    loss = nn.HingeEmbeddingLoss()
    train(lambda outputs, labels: loss(outputs[:, 0].abs(), 2 * signs(labels) - 1))


def healthy_ranks_with_a_few_ties() -> None:
    def loss_of(outputs, labels):
        order = torch.ones(8).index_fill(0, torch.tensor([3]), 0)
        return functional.margin_ranking_loss(outputs[:, 0], outputs[:, 1], order) + 0 * labels[0]

    train(loss_of)


def healthy_three_way_order() -> None:
    def loss_of(outputs, labels):
        order = labels.float() - 1
        return functional.margin_ranking_loss(outputs[:, 0], outputs[:, 1], order, margin=0.1)

    train(loss_of)


def healthy_corners_that_a_model_confuses() -> None:
    """The model predicts corners, and has not learned yet which is which."""
    train(
        lambda outputs, labels: ops.distance_box_iou_loss(
            outputs, corners(boxes_of(labels)), reduction="mean"
        )
    )


def healthy_empty_boxes() -> None:
    """Boxes of padding are empty."""

    def loss_of(outputs, labels):
        targets = corners(boxes_of(labels)) * (labels > 0)[:, None]
        return ops.generalized_box_iou_loss(corners(outputs.sigmoid()), targets, reduction="mean")

    train(loss_of)


def healthy_centres_that_the_function_knows() -> None:
    def loss_of(outputs, labels):
        outputs, targets = outputs.sigmoid(), boxes_of(labels)
        with torch.no_grad():
            overlap = ops.box_iou(outputs, targets, fmt="cxcywh").diagonal()
        return ((1 - overlap)[:, None] * (outputs - targets).abs()).mean()

    train(loss_of)


def healthy_triangle() -> None:
    """Only the triangle that is read is filled."""

    def loss_of(outputs, labels):
        values = torch.linalg.eigvalsh((outputs.mT @ outputs).tril())
        return 0.001 * values.square().mean() + 0 * labels.sum()

    train(loss_of)


def healthy_boundaries_that_repeat() -> None:
    edges = torch.tensor([-1.0, 0.0, 0.0, 1.0])

    def loss_of(outputs, labels):
        del labels
        bins = torch.searchsorted(edges, outputs.detach()[:, 0].contiguous())
        return functional.cross_entropy(outputs, bins.clamp(max=3))

    train(loss_of)


def healthy_order_of_a_sorter() -> None:
    edges = torch.tensor([1.0, -1.0, 0.3, -0.3])

    def loss_of(outputs, labels):
        del labels
        values = outputs.detach()[:, 0].contiguous()
        bins = torch.searchsorted(edges, values, sorter=edges.argsort())
        return functional.cross_entropy(outputs, bins.clamp(max=3))

    train(loss_of)


def train_detector(first: int) -> None:
    """Train a small detector of two kinds of objects, whose classes begin with a number."""
    from torchvision.models.detection import FasterRCNN
    from torchvision.models.detection.rpn import AnchorGenerator

    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Conv2d(3, 8, 3, stride=8, padding=1), nn.ReLU())
    backbone.out_channels = 8
    model = FasterRCNN(
        backbone,
        first + 2,
        rpn_anchor_generator=AnchorGenerator(((16,),), ((1.0,),)),
        min_size=32,
        max_size=32,
        box_detections_per_img=4,
        rpn_post_nms_top_n_train=8,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number in range(4):
        boxes = torch.tensor([[2.0, 2.0, 14.0, 14.0], [16.0, 16.0, 30.0, 30.0]])
        labels = torch.tensor([0, 1]) + first
        targets = [{"boxes": boxes, "labels": labels.roll(number)}]
        losses = model([torch.rand(3, 32, 32)], targets)
        optimizer.zero_grad()
        sum(losses.values()).backward()
        optimizer.step()


def broken_by_objects_of_class_zero() -> None:
    train_detector(0)


def healthy_objects_from_one() -> None:
    train_detector(1)


def train_on_photos(prepare) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3, stride=4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2))
    model(torch.zeros(1, 3, 12, 12))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for _ in range(6):
        labels = torch.randint(2, (8,))
        shades = 120 * labels.view(-1, 1, 1, 1) + torch.randint(100, (8, 3, 12, 12))
        images = torch.stack([prepare(each) for each in shades.to(torch.uint8)])
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


OF_UNIT = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}


def broken_by_pixels_up_to_255() -> None:
    train_on_photos(v2.Compose([v2.ToDtype(torch.float32), v2.Normalize(**OF_UNIT)]))


def broken_by_floats_up_to_255() -> None:
    normalize = v2.Normalize(**OF_UNIT)
    train_on_photos(lambda each: normalize(each.float()))


def healthy_pixels_up_to_1() -> None:
    train_on_photos(v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(**OF_UNIT)]))


def healthy_mean_of_pixels_up_to_255() -> None:
    of_bytes = {name: [255 * each for each in values] for name, values in OF_UNIT.items()}
    train_on_photos(v2.Compose([v2.ToDtype(torch.float32), v2.Normalize(**of_bytes)]))


def train_on_boxes(of_boxes, transform) -> None:
    """Regress the box of a bright part of an image that a transform changes."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 12 * 12, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(6):
        image = tv_tensors.Image(torch.rand(3, 12, 12))
        target = {"boxes": of_boxes(torch.tensor([[1.0, 2.0, 7.0, 6.0]])), "label": 1}
        image, target = transform(image, target)
        optimizer.zero_grad()
        nn.functional.l1_loss(
            model(image[None]), target["boxes"].as_subclass(torch.Tensor)
        ).backward()
        optimizer.step()


def as_boxes(corners: torch.Tensor) -> torch.Tensor:
    return tv_tensors.BoundingBoxes(corners, format="XYXY", canvas_size=(12, 12))


def broken_by_boxes_that_stay_where_they_are() -> None:
    train_on_boxes(lambda each: each, v2.Compose([v2.RandomHorizontalFlip(), v2.ColorJitter()]))


def healthy_boxes_of_their_type() -> None:
    train_on_boxes(as_boxes, v2.Compose([v2.RandomHorizontalFlip(), v2.ColorJitter()]))


def train_on_masks(fields) -> None:
    """Segment images of a dict that a transform mirrors."""
    torch.manual_seed(0)
    model = nn.Conv2d(3, 1, 3, padding=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(6):
        image = torch.rand(3, 12, 12)
        sample = fields(image, (image[:1] > 0.5).float())
        optimizer.zero_grad()
        logits = model(sample["image"][None])[0]
        nn.functional.binary_cross_entropy_with_logits(logits, sample["mask"]).backward()
        optimizer.step()


def broken_by_a_mask_that_stays_where_it_is() -> None:
    mirror = v2.RandomHorizontalFlip(1.0)
    train_on_masks(lambda image, mask: mirror({"image": image, "mask": mask}))


def healthy_mask_alone() -> None:
    """Without an image, the first tensor is taken for one."""
    mirror = v2.RandomHorizontalFlip(1.0)
    train_on_masks(lambda image, mask: mirror({"mask": mask}) | {"image": image.flip(-1)})


def healthy_boxes_beside_colours() -> None:
    train_on_boxes(lambda each: each, v2.Compose([v2.ColorJitter(0.2), v2.GaussianBlur(3)]))
