"""A one-stage detector trained as ultralytics does: mosaics, small modules, an EMA and NMS.

The loss runs in the model; the average of the weights, the augmentation and the validation run in
the loop, tensor by tensor.
"""

from __future__ import annotations

import copy
import io
import math
import sys

import numpy as np
import torch
from clock import mark
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

STEPS = int(sys.argv[1])
BATCH, SIZE, CLASSES, BINS, PER_EPOCH, WARMUP = 4, 128, 8, 16, 30, 10
STRIDES = (8, 16, 32)


class Conv(nn.Module):
    """A convolution with batch norm and SiLU."""

    def __init__(self, given: int, made: int, size: int = 1, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(given, made, size, stride, size // 2, bias=False)
        self.bn = nn.BatchNorm2d(made, eps=1e-3, momentum=0.03)
        self.act = nn.SiLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the features."""
        return self.act(self.bn(self.conv(x)))

    def fused(self, x: torch.Tensor) -> torch.Tensor:
        """Return the features without the norm, which `fuse` has put into the convolution."""
        return self.act(self.conv(x))


class Bottleneck(nn.Module):
    """Two convolutions with a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cv1, self.cv2 = Conv(width, width, 3), Conv(width, width, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the features."""
        return x + self.cv2(self.cv1(x))


class C2f(nn.Module):
    """Bottlenecks whose results are all joined."""

    def __init__(self, given: int, made: int, number: int) -> None:
        super().__init__()
        half = made // 2
        self.cv1, self.cv2 = Conv(given, made), Conv((2 + number) * half, made)
        self.m = nn.ModuleList(Bottleneck(half) for _ in range(number))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the features."""
        parts = list(self.cv1(x).chunk(2, 1))
        parts.extend(m(parts[-1]) for m in self.m)
        return self.cv2(torch.cat(parts, 1))


class Detector(nn.Module):
    """A backbone, a neck and heads at three strides; with a batch it returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        w = [16, 32, 64, 128]
        self.stem = nn.Sequential(Conv(3, w[0], 3, 2), Conv(w[0], w[1], 3, 2), C2f(w[1], w[1], 1))
        self.p3 = nn.Sequential(Conv(w[1], w[2], 3, 2), C2f(w[2], w[2], 2))
        self.p4 = nn.Sequential(Conv(w[2], w[2], 3, 2), C2f(w[2], w[2], 2))
        self.p5 = nn.Sequential(Conv(w[2], w[3], 3, 2), C2f(w[3], w[3], 1))
        self.up4, self.up3 = C2f(w[3] + w[2], w[2], 1), C2f(w[2] + w[2], w[2], 1)
        self.down4, self.down5 = Conv(w[2], w[2], 3, 2), Conv(w[2], w[2], 3, 2)
        self.out4, self.out5 = C2f(2 * w[2], w[2], 1), C2f(w[2] + w[3], w[3], 1)
        self.boxes, self.classes = nn.ModuleList(), nn.ModuleList()
        for width in (w[2], w[2], w[3]):
            self.boxes.append(
                nn.Sequential(Conv(width, 32, 3), Conv(32, 32, 3), nn.Conv2d(32, 4 * BINS, 1))
            )
            self.classes.append(
                nn.Sequential(Conv(width, 32, 3), Conv(32, 32, 3), nn.Conv2d(32, CLASSES, 1))
            )
            self.classes[-1][-1].bias.data.fill_(-4.0)
        self.bins = nn.Parameter(torch.arange(BINS, dtype=torch.float), requires_grad=False)

    def forward(self, x: torch.Tensor | dict[str, torch.Tensor]) -> list[torch.Tensor]:
        """Return the maps of the heads, or loss and its items for a batch."""
        if isinstance(x, dict):
            return self.loss(x)
        p3 = self.p3(self.stem(x))
        p4 = self.p4(p3)
        p5 = self.p5(p4)
        n4 = self.up4(torch.cat([functional.interpolate(p5, scale_factor=2.0), p4], 1))
        n3 = self.up3(torch.cat([functional.interpolate(n4, scale_factor=2.0), p3], 1))
        n4 = self.out4(torch.cat([self.down4(n3), n4], 1))
        n5 = self.out5(torch.cat([self.down5(n4), p5], 1))
        maps = zip((n3, n4, n5), self.boxes, self.classes, strict=True)
        return [torch.cat([box(x), kind(x)], 1) for x, box, kind in maps]

    def decoded(
        self, maps: list[torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return points, strides, boxes in pixels, and the logits of classes."""
        points, strides = [], []
        for each, stride in zip(maps, STRIDES, strict=True):
            rows, columns = torch.meshgrid(
                torch.arange(each.shape[2]) + 0.5, torch.arange(each.shape[3]) + 0.5, indexing="ij"
            )
            points.append(torch.stack((columns, rows), -1).view(-1, 2))
            strides.append(torch.full((each.shape[2] * each.shape[3], 1), float(stride)))
        joined = torch.cat([each.flatten(2) for each in maps], 2).permute(0, 2, 1)
        sides, logits = joined.split((4 * BINS, CLASSES), 2)
        shares = sides.view(*sides.shape[:2], 4, BINS).softmax(3)
        lengths = shares.matmul(self.bins.type(shares.dtype))
        anchors, stride = torch.cat(points), torch.cat(strides)
        low, high = lengths.chunk(2, -1)
        boxes = torch.cat((anchors - low, anchors + high), -1) * stride
        return anchors * stride, stride, boxes, logits

    def loss(self, batch: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        """Return the loss times the batch size, and its detached items."""
        maps = self.forward(batch["img"])
        points, _, boxes, logits = self.decoded(maps)
        parts = torch.zeros(2)
        wanted = torch.zeros_like(logits)
        matched, targets, weights = [], [], []
        for number in range(len(boxes)):
            mine = batch["bboxes"][batch["batch_idx"] == number]
            kinds = batch["cls"][batch["batch_idx"] == number].long().view(-1)
            if not len(mine):
                continue
            with torch.no_grad():
                inside = (
                    torch.cat(
                        (points[None] - mine[:, None, :2], mine[:, None, 2:] - points[None]), -1
                    ).amin(-1)
                    > 1e-9
                )
                overlap = iou(mine[:, None], boxes[number].detach()[None]).squeeze(-1).clamp(0)
                score = logits[number].detach().sigmoid()[:, kinds].T
                metric = (score.pow(0.5) * overlap.pow(6.0) + 1e-9) * inside
                top = torch.zeros_like(metric).scatter_(1, metric.topk(10, 1).indices, 1.0)
                chosen = top * inside
                twice = chosen.sum(0) > 1
                best = functional.one_hot(overlap.argmax(0), len(mine)).T.float()
                chosen = torch.where(twice[None], best * inside, chosen)
                taken, owner = chosen.sum(0) > 0, chosen.argmax(0)
                norm = (
                    metric / (metric.amax(1, keepdim=True) + 1e-9) * overlap.amax(1, keepdim=True)
                )
                strength = (norm * chosen).amax(0)
                wanted[number, taken, kinds[owner[taken]]] = strength[taken]
            matched.append(boxes[number][taken])
            targets.append(mine[owner[taken]])
            weights.append(strength[taken])
        total = max(wanted.sum(), torch.tensor(1.0))
        crosses = functional.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
        parts[1] = crosses.sum() / total
        if matched:
            overlap = iou(torch.cat(matched), torch.cat(targets))
            parts[0] = ((1.0 - overlap) * torch.cat(weights)[:, None]).sum() / total
        parts = parts * torch.tensor([7.5, 0.5])
        return [parts * len(boxes), parts.detach()]

    def fuse(self) -> Detector:
        """Put the norms into the convolutions."""
        for each in self.modules():
            if isinstance(each, Conv) and hasattr(each, "bn"):
                factor = each.bn.weight / torch.sqrt(each.bn.bias * 0 + each.bn.running_var + 1e-3)
                fused = nn.Conv2d(
                    each.conv.in_channels,
                    each.conv.out_channels,
                    each.conv.kernel_size,
                    each.conv.stride,
                    each.conv.padding,
                ).requires_grad_(requires_grad=False)
                fused.weight.copy_(each.conv.weight * factor[:, None, None, None])
                fused.bias.copy_(each.bn.bias - each.bn.running_mean * factor)
                each.conv, each.forward = fused, each.fused
                del each.bn
        return self


def iou(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Return the complete IoU of boxes, as (left, top, right, bottom)."""
    a, b, c, d = first.chunk(4, -1)
    e, f, g, h = second.chunk(4, -1)
    width, height, wide, high = c - a, d - b + 1e-7, g - e, h - f + 1e-7
    both = (c.minimum(g) - a.maximum(e)).clamp_(0) * (d.minimum(h) - b.maximum(f)).clamp_(0)
    overlap = both / (width * height + wide * high - both + 1e-7)
    around = (c.maximum(g) - a.minimum(e)).pow(2) + (d.maximum(h) - b.minimum(f)).pow(2) + 1e-7
    apart = ((e + g - a - c).pow(2) + (f + h - b - d).pow(2)) / 4
    shape = (4 / math.pi**2) * ((wide / high).atan() - (width / height).atan()).pow(2)
    with torch.no_grad():
        alpha = shape / (shape - overlap + (1 + 1e-7))
    return overlap - (apart / around + shape * alpha)


class Average:
    """An average of the weights, tensor by tensor."""

    def __init__(self, model: nn.Module) -> None:
        self.ema, self.updates = copy.deepcopy(model).eval(), 0
        for each in self.ema.parameters():
            each.requires_grad_(requires_grad=False)

    def update(self, model: nn.Module) -> None:
        """Take the weights after a step."""
        self.updates += 1
        decay = 0.9999 * (1 - math.exp(-self.updates / 2000))
        state = model.state_dict()
        for name, value in self.ema.state_dict().items():
            if value.dtype.is_floating_point:
                value *= decay  # noqa: PLW2901  # in place, as there
                value += (1 - decay) * state[name].detach()  # noqa: PLW2901


class Mosaics(Dataset):
    """Images of rectangles; four of them are joined, moved, flipped and coloured."""

    def __init__(self, number: int, *, augment: bool) -> None:
        self.number, self.augment = number, augment

    def __len__(self) -> int:
        return self.number

    def image(self, index: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return an image, its boxes and its classes."""
        draws = np.random.default_rng(index)
        image = draws.integers(90, 130, (SIZE, SIZE, 3), dtype=np.uint8)
        boxes, kinds = [], draws.integers(0, CLASSES, 3)
        for kind in kinds:
            x, y = draws.integers(0, SIZE - 40, 2)
            w, h = draws.integers(20, 40, 2)
            image[y : y + h, x : x + w] = (30 * kind, 255 - 30 * kind, 20 * (kind % 3))
            boxes.append((x, y, x + w, y + h))
        return image, np.array(boxes, dtype=np.float32), kinds

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        image, boxes, kinds = self.image(index)
        if self.augment:
            draws = np.random.default_rng(1000 + index)
            canvas = np.full((2 * SIZE, 2 * SIZE, 3), 114, dtype=np.uint8)
            parts = []
            for place, other in enumerate([index, *draws.integers(0, self.number, 3)]):
                image, boxes, kinds = self.image(int(other))
                x, y = place % 2 * SIZE, place // 2 * SIZE
                canvas[y : y + SIZE, x : x + SIZE] = image
                parts.append((boxes + np.array([x, y, x, y], dtype=np.float32), kinds))
            x, y = draws.integers(0, SIZE, 2)
            image = canvas[y : y + SIZE, x : x + SIZE]
            boxes = np.concatenate([part[0] for part in parts]) - np.array([x, y, x, y])
            kinds = np.concatenate([part[1] for part in parts])
            boxes = boxes.clip(0, SIZE).astype(np.float32)
            large = ((boxes[:, 2:] - boxes[:, :2]) > 8).all(1)
            boxes, kinds = boxes[large], kinds[large]
            gains = draws.uniform(-1, 1, 3) * [0.015, 0.7, 0.4] + 1
            image = (image * gains).clip(0, 255).astype(np.uint8)
            if draws.random() < 0.5:
                image = image[:, ::-1]
                boxes[:, [0, 2]] = SIZE - boxes[:, [2, 0]]
        return {
            "img": torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1))),
            "cls": torch.from_numpy(kinds.astype(np.float32))[:, None],
            "bboxes": torch.from_numpy(np.ascontiguousarray(boxes)).reshape(-1, 4),
            "batch_idx": torch.zeros(len(boxes)),
        }

    @staticmethod
    def joined(items: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        """Return a batch of images and the boxes of all of them."""
        for number, each in enumerate(items):
            each["batch_idx"] += number
        joins = {"img": torch.stack}
        return {
            name: joins.get(name, torch.cat)([each[name] for each in items]) for name in items[0]
        }


def suppressed(boxes: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """Return the boxes that overlap no better one, by a plain loop."""
    order, kept = scores.argsort(descending=True)[:30], []
    while len(order):
        kept.append(order[0])
        if len(order) == 1:
            break
        overlap = iou(boxes[order[0]][None], boxes[order[1:]]).squeeze(-1)
        order = order[1:][overlap < 0.7]
    return torch.stack(kept) if kept else order


@torch.no_grad()
def validated(model: Detector, loader: DataLoader) -> float:
    """Return the share of the boxes that are found."""
    model.eval()
    found, count = 0, 0
    for batch in loader:
        images = batch["img"].float() / 255
        _, _, boxes, logits = model.decoded(model(images))
        scores, kinds = logits.sigmoid().max(-1)
        for number in range(len(images)):
            keep = scores[number] > 0.001
            mine, kind = boxes[number][keep], kinds[number][keep]
            chosen = suppressed(mine + kind[:, None] * SIZE, scores[number][keep])
            wanted = batch["bboxes"][batch["batch_idx"] == number]
            count += len(wanted)
            if len(chosen):
                overlap = iou(wanted[:, None], mine[chosen][None]).squeeze(-1)
                found += int((overlap.amax(1) > 0.5).sum())
    return found / max(count, 1)


def main() -> None:  # noqa: PLR0915  # a plain loop
    """Train for the steps of the command line."""
    mark("train")
    torch.manual_seed(0)
    model = Detector()
    average = Average(model)
    groups: tuple[list[nn.Parameter], ...] = ([], [], [])
    for each in model.modules():
        for name, parameter in each.named_parameters(recurse=False):
            if parameter.requires_grad:
                is_norm = isinstance(each, nn.BatchNorm2d)
                groups[2 if name == "bias" else 1 if is_norm else 0].append(parameter)
    optimizer = torch.optim.SGD(groups[2], lr=0.01, momentum=0.937, nesterov=True)
    optimizer.add_param_group({"params": groups[0], "weight_decay": 5e-4})
    optimizer.add_param_group({"params": groups[1], "weight_decay": 0.0})
    epochs = math.ceil(STEPS / PER_EPOCH)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda epoch: max(1 - epoch / epochs, 0) * 0.99 + 0.01
    )
    scheduler.last_epoch = -1
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    train = DataLoader(
        Mosaics(BATCH * PER_EPOCH, augment=True), BATCH, shuffle=True, collate_fn=Mosaics.joined
    )
    validation = DataLoader(Mosaics(8, augment=False), BATCH, collate_fn=Mosaics.joined)
    taken, best, file = 0, -1.0, io.BytesIO()
    optimizer.zero_grad()
    for epoch in range(epochs):
        scheduler.step()
        model.train()
        mean = None
        for number, batch in enumerate(train):
            if taken < WARMUP:
                for place, group in enumerate(optimizer.param_groups):
                    first = 0.1 if place == 0 else 0.0
                    goal = group["initial_lr"] * scheduler.lr_lambdas[0](epoch)
                    group["lr"] = float(np.interp(taken, [0, WARMUP], [first, goal]))
                    group["momentum"] = float(np.interp(taken, [0, WARMUP], [0.8, 0.937]))
            batch["img"] = batch["img"].to("cpu", non_blocking=True).float() / 255
            with torch.autocast("cpu", enabled=False):
                loss, items = model(batch)
                loss = loss.sum()
            mean = items if mean is None else (mean * number + items) / (number + 1)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), max_norm=10.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            average.update(model)
            taken += 1
            if taken == STEPS:
                break
        score = validated(average.ema, validation)
        print(epoch, [round(each, 4) for each in mean.tolist()], score)
        if score >= best:
            best, file = score, io.BytesIO()
            kept = {"ema": copy.deepcopy(average.ema).half().state_dict()}
            torch.save(kept | {"optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    final = Detector()
    final.load_state_dict(torch.load(file)["ema"])
    with torch.no_grad():
        final.eval().fuse()
    print(validated(final, validation))
    mark("end")


main()
