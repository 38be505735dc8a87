"""Faults in torchvision's reference for detection, and in its Faster R-CNN."""

# Text that is exchanged stays in the lines that it has.

from __future__ import annotations

from large_programs.faults import Exchange, Fault, Program

ARGUMENTS = (
    "--model fasterrcnn_mobilenet_v3_large_320_fpn --device cpu --amp -b 2 -j 0 --epochs 1 "
    "--lr 0.001 --aspect-ratio-group-factor -1 --print-freq 1 --num-classes 2"
)
PROGRAM = Program(
    "detector",
    "train.py",
    (
        Exchange(
            "engine.py",
            "torch.cuda.amp.autocast(enabled=scaler is not None)",
            "torch.autocast('cpu', torch.float16, enabled=scaler is not None)",
        ),
        Exchange(
            "train.py",
            "torch.cuda.amp.GradScaler()",
            "torch.amp.GradScaler('cpu', init_scale=1024.0)",
        ),
        Exchange(
            "train.py",
            'kwargs = {"trainable_backbone_layers": args.trainable_backbone_layers}',
            'kwargs = {"trainable_backbone_layers": 6, "min_size": 64, "max_size": 64}',
        ),
    ),
    ARGUMENTS,
    "--data-path",
    "--output-dir",
)

HEADS = "torchvision.models.detection.roi_heads"
PROPOSALS = "torchvision.models.detection.rpn"
FAULTS = (
    Fault(
        "detector",
        6,
        "BACKWARD_NOT_SCALED",
        (Exchange("engine.py", "scaler.scale(losses).backward()", "losses.backward()"),),
        "losses.backward()",
    ),
    Fault(
        "detector",
        9,
        "UPDATE_SKIPPED",
        (Exchange("engine.py", "            scaler.update()\n", ""),),
        "scaler.",
    ),
    Fault(
        "detector",
        31,
        "LOG_OF_ZERO",
        (
            Exchange(
                HEADS,
                "    classification_loss = F.cross_entropy(class_logits, labels)\n",
                "    chances = F.softmax(class_logits * 1000, dim=-1)\n"
                "    classification_loss = F.nll_loss(chances.log(), labels)\n",
            ),
        ),
        "chances.log()",
        "roi_heads",
    ),
    Fault(
        "detector",
        34,
        "NOTHING_TO_AVERAGE",
        (
            Exchange(
                PROPOSALS,
                """            pred_bbox_deltas[sampled_pos_inds],
            regression_targets[sampled_pos_inds],
            beta=1 / 9,
            reduction="sum",
        ) / (sampled_inds.numel())
""",
                """            pred_bbox_deltas[sampled_pos_inds][objectness[sampled_pos_inds] > 4],
            regression_targets[sampled_pos_inds][objectness[sampled_pos_inds] > 4],
            beta=1 / 9,
        )
""",
            ),
        ),
        "smooth_l1_loss",
        "rpn",
    ),
)
