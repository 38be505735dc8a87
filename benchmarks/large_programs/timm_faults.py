"""Faults in timm's `train.py` and in the parts of timm that it trains with."""

# ruff: noqa: E501  # Text that is exchanged stays in the lines that it has.

from __future__ import annotations

from large_programs.faults import Exchange, Fault, Program

ARGUMENTS = (
    "--model test_vit --num-classes 6 --img-size 32 -b 8 --epochs 1 --amp --device cpu "
    "--workers 0 --opt adamw --lr 1e-3 --clip-grad 1.0 --model-ema --no-prefetcher "
    "--warmup-epochs 0"
)
PROGRAM = Program(
    "timm",
    "train.py",
    (Exchange("train.py", "device.type in ('cuda',)", "device.type in ('cuda', 'cpu')"),),
    ARGUMENTS,
    "--data-dir",
    "--output",
)

SCALER, ATTENTION, MLP = "timm.utils.cuda", "timm.layers.attention", "timm.layers.mlp"
LOSS = "timm.loss.cross_entropy"
UNSCALE = "                self._scaler.unscale_(optimizer)"
BACKWARD = "        self._scaler.scale(loss).backward(create_graph=create_graph)\n"
UPDATE = (
    "            self._scaler.step(optimizer)\n            self._scaler.update()\n\n"
    "    def state_dict(self):\n        return self._scaler"
)
PRODUCT = (
    "            attn = q @ k.transpose(-2, -1)\n            attn_bias = resolve_self_attn_mask(N"
)
LARGE = "    if args.grad_checkpointing:\n        model.set_grad_checkpointing(enable=True)\n"
START = "    trainable_module = task.get_trainable_module()\n    trainable_module.train()\n"


def _after_model(text: str) -> Exchange:
    return Exchange("train.py", LARGE, text + LARGE)


def _weights(part: str, factor: float) -> Exchange:
    return _after_model(
        f"    for _name, _each in model.named_parameters():\n"
        f"        if '{part}' in _name:\n            _each.data.mul_({factor})\n"
    )


def _update(text: str) -> Exchange:
    return Exchange(SCALER, UPDATE, text + UPDATE[UPDATE.index("\n\n") :])


STEP = "            self._scaler.step(optimizer)\n"
DONE = "            self._scaler.update()"
FAULTS = (
    Fault(
        "timm",
        1,
        "STEP_BYPASSES_SCALER",
        (_update(f"{STEP}{DONE}\n            optimizer.step()"),),
        "optimizer.step()",
    ),
    Fault(
        "timm",
        2,
        "GRADIENTS_CHANGED_WHILE_SCALED",
        (Exchange(SCALER, UNSCALE, "                pass"),),
        "clip_grad",
    ),
    Fault(
        "timm",
        4,
        "UNSCALED_EVERY_MICRO_STEP",
        (
            Exchange(
                SCALER,
                BACKWARD,
                BACKWARD
                + "        if not need_update:\n            self._scaler.unscale_(optimizer)\n"
                "            self._scaler.update()\n",
            ),
        ),
        "unscale_",
        arguments="--grad-accum-steps 2",
    ),
    Fault(
        "timm", 5, "SCALER_UPDATED_TWICE", (_update(f"{STEP}{DONE}\n{DONE}"),), "_scaler.update()"
    ),
    Fault(
        "timm",
        6,
        "BACKWARD_NOT_SCALED",
        (Exchange(SCALER, BACKWARD, "        loss.backward()\n"),),
        "loss.backward()",
    ),
    Fault(
        "timm",
        8,
        "SCALER_NOT_SAVED",
        (Exchange("timm.utils.checkpoint_saver", "if self.amp_scaler is not None", "if False"),),
        "torch.save",
    ),
    Fault(
        "timm",
        13,
        "BACKWARD_UNDER_AUTOCAST",
        (
            Exchange(
                "train.py",
                "                loss, result = _forward()\n                _backward(loss)\n",
                "                with amp_autocast():\n                    loss, result = _forward()\n"
                "                    _backward(loss)\n",
            ),
        ),
        "loss_scaler(",
    ),
    Fault(
        "timm",
        19,
        "MEAN_SQUARE_OVERFLOW",
        (
            _weights("blocks.0.mlp.fc1", 9000.0),
            Exchange(
                MLP,
                "        x = self.act(x)\n        x = self.drop1(x)\n        x = self.norm(x)\n        x = self.fc2(x)",
                "        x = self.act(x)\n        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)\n        x = self.fc2(x)",
            ),
            Exchange(MLP, "from torch import nn as nn", "import torch\nfrom torch import nn as nn"),
        ),
        "x.pow(2)",
        "blocks.0.mlp",
    ),
    Fault(
        "timm",
        21,
        "ATTENTION_LOGITS_OVERFLOW",
        (_weights("blocks.1.attn.qkv", 6000.0),),
        "q @ k.transpose",
        "blocks.1.attn",
    ),
    Fault(
        "timm",
        22,
        "MASK_NOT_REPRESENTABLE",
        (
            Exchange(
                ATTENTION,
                PRODUCT,
                "            attn = q @ k.transpose(-2, -1)\n"
                "            attn = attn.masked_fill(attn.new_ones(N, N).triu(1).bool(), -1e9)\n"
                "            attn_bias = resolve_self_attn_mask(N",
            ),
        ),
        "masked_fill",
    ),
    Fault(
        "timm",
        24,
        "FULLY_MASKED_ROW",
        (
            Exchange(
                ATTENTION,
                PRODUCT,
                "            attn = q @ k.transpose(-2, -1)\n"
                "            attn = attn.masked_fill(attn.new_ones(N, N).triu(0).bool(), float('-inf'))\n"
                "            attn_bias = resolve_self_attn_mask(N",
            ),
        ),
        "softmax",
        "blocks.0.attn",
    ),
    Fault(
        "timm",
        29,
        "AVERAGE_IN_HALF",
        (
            Exchange(
                "timm.utils.model_ema",
                "        self.module = deepcopy(model)\n        self.module.eval()\n        self.decay = decay\n        self.min_decay",
                "        self.module = deepcopy(model).half()\n        self.module.eval()\n        self.decay = decay\n        self.min_decay",
            ),
            Exchange(
                "timm.utils.model_ema",
                "            self.apply_update_(model, decay)\n",
                "            for _mine, _its in zip(self.module.parameters(), model.parameters()):\n                _mine.lerp_(_its.to(_mine.dtype), 1 - decay)\n",
            ),
        ),
        "lerp_",
        arguments="--lr 1e-2 --epochs 4",
    ),
    Fault(
        "timm",
        30,
        "EXP_OVERFLOW",
        (
            _weights("blocks.0.mlp.fc1", 1500.0),
            Exchange(
                MLP,
                "        x = self.act(x)\n        x = self.drop1(x)\n        x = self.norm(x)",
                "        x = x * (x.exp() / (1 + x.exp()))\n        x = self.norm(x)",
            ),
        ),
        "x.exp()",
        "blocks.0.mlp",
    ),
    Fault(
        "timm",
        31,
        "LOG_OF_ZERO",
        (
            _weights("head.weight", 1e5),
            Exchange(
                LOSS,
                "        logprobs = F.log_softmax(x, dim=-1)\n        nll_loss",
                "        logprobs = F.softmax(x, dim=-1).log()\n        nll_loss",
            ),
        ),
        ".log()",
    ),
    Fault(
        "timm",
        35,
        "CORRUPT_BATCH",
        (
            Exchange(
                "train.py",
                "        if args.channels_last:\n            input = input.contiguous",
                "        if batch_idx == 2:\n            input[1, 0, 3, 3] = float('nan')\n"
                "        if args.channels_last:\n            input = input.contiguous",
            ),
        ),
    ),
    Fault(
        "timm",
        36,
        "ROOT_AT_ZERO",
        (
            Exchange(
                LOSS,
                "        return loss.mean()\n\n\nclass Soft",
                "        spread = (x - x.detach()).square().sum(1)\n"
                "        return loss.mean() + spread.sqrt().mean()\n\n\nclass Soft",
            ),
        ),
        "spread.sqrt()",
    ),
    Fault(
        "timm",
        49,
        "LEARNING_RATE_TOO_HIGH",
        (),
        arguments="--opt sgd --lr 3e4",
    ),
)
