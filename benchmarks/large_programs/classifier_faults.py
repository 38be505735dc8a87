"""Faults in torchvision's reference for classification."""

# ruff: noqa: E501  # Text that is exchanged stays in the lines that it has.

from __future__ import annotations

from large_programs.faults import Exchange, Fault, Program

ARGUMENTS = (
    "--model shufflenet_v2_x0_5 --device cpu --amp -b 8 -j 0 --epochs 2 --lr 0.01 "
    "--clip-grad-norm 1 --train-crop-size 32 --val-resize-size 36 --val-crop-size 32 "
    "--model-ema --lr-warmup-epochs 0 --label-smoothing 0.1"
)
PROGRAM = Program(
    "torchvision",
    "train.py",
    (
        Exchange(
            "train.py",
            "torch.cuda.amp.autocast(enabled=scaler is not None)",
            "torch.autocast('cpu', torch.float16, enabled=scaler is not None)",
        ),
        Exchange("train.py", "torch.cuda.amp.GradScaler()", "torch.amp.GradScaler('cpu')"),
    ),
    ARGUMENTS,
    "--data-path",
    "--output-dir",
)

FAULTS = (
    Fault(
        "torchvision",
        1,
        "STEP_BYPASSES_SCALER",
        (
            Exchange(
                "train.py",
                "            scaler.update()\n",
                "            scaler.update()\n            optimizer.step()\n",
            ),
        ),
        "optimizer.step()",
    ),
    Fault(
        "torchvision",
        2,
        "GRADIENTS_CHANGED_WHILE_SCALED",
        (Exchange("train.py", "                scaler.unscale_(optimizer)\n", ""),),
        "clip_grad_norm_",
    ),
    Fault(
        "torchvision",
        8,
        "SCALER_NOT_SAVED",
        (
            Exchange(
                "train.py",
                '                checkpoint["scaler"] = scaler.state_dict()',
                "                pass",
            ),
        ),
        "torch.save",
    ),
    Fault(
        "torchvision",
        8,
        "SCALER_STATE_NOT_RESTORED",
        (
            Exchange(
                "train.py",
                "        train_one_epoch(model, criterion, optimizer, data_loader, device, epoch, args, model_ema, scaler)",
                "        scaler = torch.amp.GradScaler('cpu')\n        train_one_epoch(model, criterion, optimizer, data_loader, device, epoch, args, model_ema, scaler)",
            ),
        ),
        "GradScaler(",
    ),
    Fault(
        "torchvision",
        9,
        "UPDATE_SKIPPED",
        (Exchange("train.py", "            scaler.update()\n", ""),),
        "scaler.",
    ),
    Fault(
        "torchvision",
        11,
        "NO_GRADIENTS",
        (
            Exchange(
                "train.py",
                "    model_without_ddp = model\n",
                "    import copy\n    model = copy.deepcopy(model)\n    model_without_ddp = model\n",
            ),
        ),
    ),
    Fault(
        "torchvision",
        3,
        "FP16_PARAMETERS_WITH_SCALER",
        (
            Exchange(
                "train.py", "    model.to(device)\n", "    model.to(device)\n    model.fc.half()\n"
            ),
        ),
        module="fc",
    ),
)
