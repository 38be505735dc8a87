"""Chinese terms for the tables of the docs, whose scripts write English."""

# Chinese text has Chinese punctuation.
# ruff: noqa: RUF001

from __future__ import annotations

import re

CELLS = {
    "../README.md": {
        "ResNet-50 on an H200": "H200 上的 ResNet-50",
        "images a second, PyTorch's own loop": "每秒图像数，PyTorch 自己的循环",
        "images a second, halfstep's engine": "每秒图像数，halfstep 的 engine",
        "peak memory, GiB": "显存峰值，GiB",
    },
    "advise-gpus-validation.md": {
        "model": "模型",
        "recipe": "方案",
        "step": "一步耗时",
        "predicted step": "预测耗时",
        "relative to PyTorch's loop": "与 PyTorch 自己的循环之比",
        "tensors at the peak": "张量的显存峰值",
        "error of predicted bytes": "字节数的预测误差",
        "images": "图像",
        "layout": "内存格式",
        "bytes of tensors": "张量的字节数",
        "measured": "测得",
        "published speeds": "公布的速度",
        "current software": "当前的软件",
        "part": "用途",
        "held out": "检验",
        "fitted to": "拟合",
        "samples a second": "每秒样本数",
        "predicted": "预测",
        "in the interval": "在区间内",
        "precision": "精度",
    },
    "compare.md": {
        "true speed": "真实速度",
        "advised, 3 seeds": "建议采用的比例，3 个种子",
        "advised, 5 seeds": "5 个种子",
        "spread over seeds, points": "种子间的标准差，百分点",
        "settled, 3 seeds": "有定论的比例，3 个种子",
        "settled, 5 seeds": "5 个种子",
        "settled, 8 seeds": "8 个种子",
        "looks, seeds": "判断时的种子数",
        "equal noise": "噪声相同",
        "baseline 3x as noisy": "基准的噪声为 3 倍",
        "recipe 3x as noisy": "方案的噪声为 3 倍",
        "baseline 5x as noisy": "基准的噪声为 5 倍",
        "recipe 5x as noisy": "方案的噪声为 5 倍",
    },
    "doctor.md": {
        "nothing": "普通的一步",
        "nothing again": "普通的一步，再测一遍",
        "halfstep grammar alone": "halfstep，只记录调用顺序",
        "halfstep watch, all gradients": "halfstep，全部梯度范数",
        "halfstep watch, a close look": "halfstep，比较参数",
        "halfstep watch": "halfstep，平均",
        "module hooks": "模块 hook",
        "program": "程序",
        "faults": "错误",
        "named at first": "诊断正确（改进前）",
        "named": "诊断正确（改进后）",
        "line right": "行号正确",
        "module right": "模块正确",
        "false alarms": "误报",
        "detector": "检测器",
    },
    "experiments/2-bit-activations.md": {
        "model": "模型",
        "stored": "保存方式",
        "less than fp16": "相对 fp16 缩小",
        "less than fp32": "相对 fp32 缩小",
        "step time ratio": "耗时之比",
        "cosine": "余弦",
        "exact": "不压缩",
        "budget": "按预算",
        "checkpointing": "重计算",
        "checkpointing and act2": "重计算，加 act2",
        "data": "数据",
        "recipe": "方案",
        "best accuracy %": "最佳准确率 %",
        "minus fp32, points": "与 fp32 之差，百分点",
        "95 % interval": "95 % 区间",
        "seeds": "种子数",
        "cap": "内存上限",
    },
    "experiments/posts.md": {
        "run": "训练",
        "the post": "博客",
        "here": "这里",
        "images/s": "图像/秒",
        "peak GiB": "显存峰值 GiB",
        "measured on": "测量环境",
        "not yet measured": "还没有测量",
        "trains": "训练正常",
        "non-finite": "出现非有限值",
        "out of memory": "显存不足",
        "NaN, with a second optimizer.step()": "NaN，因为多调用了一次 optimizer.step()",
        "the double step, under doctor": "多出来的一步，用 doctor 观察",
        "found after days": "几天后才找到",
        "2-bit activations fit, too slowly": "2 比特激活值放得下，太慢",
        "the baseline": "基准",
        "faster, less memory": "更快，显存更少",
        "the fastest": "最快",
        "a loop of torch.amp": "torch.amp 的循环",
        "The regime in which pure half precision breaks is not yet measured.": (
            "纯半精度从哪里开始失效，还没有测量。"
        ),
        "No run in pure half precision was non-finite: the regime in which it breaks was not "
        "found.": ("没有一次纯半精度的训练出现非有限值：没有找到它从哪里开始失效。"),
    },
    "performance.md": {
        "step": "训练步",
        "recipe": "方案",
        "ResNet-50: PyTorch's loop, ms": "ResNet-50：PyTorch 的循环，毫秒",
        "ResNet-50: engine, ms": "ResNet-50：engine，毫秒",
        "ResNet-50: GiB": "ResNet-50：GiB",
        "ViT-B: PyTorch's loop, ms": "ViT-B：PyTorch 的循环，毫秒",
        "ViT-B: engine, ms": "ViT-B：engine，毫秒",
        "ViT-B: GiB": "ViT-B：GiB",
        "ms": "毫秒",
        "PyTorch, fp32, fused": "PyTorch, fp32，融合",
        "PyTorch, bf16, fused": "PyTorch, bf16，融合",
        "torchao, bf16 with stochastic rounding": "torchao, bf16，随机舍入",
        "product": "算子",
        "raw": "原始循环",
        "raw loop": "原始循环",
        "trainer": "训练器",
        "work": "工作",
        "forward: convolutions": "前向：卷积",
        "forward: casts": "前向：类型转换",
        "forward: other operators": "前向：其他算子",
        "backward: convolutions": "反向：卷积",
        "backward: casts": "反向：类型转换",
        "backward: other operators": "反向：其他算子",
        "unscale, find inf and NaN": "反缩放，查找 inf 和 NaN",
        "casts of weights and gradients": "权重和梯度的类型转换",
        "optimizer": "优化器",
        "Python, autograd": "Python、autograd",
        "whole step, without the profiler": "整个一步，不带 profiler",
        "checkpoint of": "检查点",
        "size, MB": "大小，MB",
        "pause, synchronous": "停顿，同步",
        "pause, background": "停顿，后台",
        "extra time, synchronous": "增加的时间，同步",
        "extra time, background": "增加的时间，后台",
        "raw loop, compiled": "原始循环，编译",
        "engine, compiled": "engine，编译",
        "time to compile": "编译用时",
        "break-even": "多少步后划算",
        "never": "不划算",
        "graphs": "计算图",
        "loss difference": "损失的相对差",
    },
}
"""Translations of whole cells, by page."""
PARTS = {
    r" ?\((\S+) to (\S+)\)": r"（\1 到 \2）",
    r", host$": "，主机",
    r", compute$": "，计算",
    r", bandwidth$": "，带宽",
    r" ?\(mean (\S+)\)": r"（平均 \1）",
    r", compiled$": "，编译",
    r", clipping$": "，梯度裁剪",
    r", (\d+) images of (\d+) px$": r"，\2 px 的图像 \1 张",
    r"^([\d,]+) steps$": r"\1 步",
    r" parameters$": " 参数",
    r"^(\d+) of (\d+)$": r"\1 / \2",
    r"^(\S+) to (\S+)$": r"\1 到 \2",
    r", (\d+) pixels$": r"，\1 像素",
    r", rate (\S+)$": r"，学习率 \1",
    r", (\d+)x the rate$": r"，\1 倍学习率",
    r", (\d+) images at once$": r"，一次 \1 张图像",
    r"^(\S+), (\d+) images(，|$)": r"\1，每步 \2 张图像\3",
    r"^(\d+) GPUs, (\d+) images each$": r"\1 块 GPU，每块 \2 张图像",
    r"^needs several GPUs: ": "需要多块 GPU：",
    r"^no epoch ended, ": "一个 epoch 都没有完成，",
    r"^(\S+ %), (\d+) skipped steps$": r"\1，跳过 \2 步",
    r"，(\d+) skipped steps$": r"，跳过 \1 步",
    r"^non-finite at step (\d+)$": r"第 \1 步出现非有限值",
    r"^failed: ": "失败：",
    r"^Pure half precision is non-finite with: (.*)\.$": r"纯半精度出现非有限值的训练：\1。",
}
"""Translations of parts of other cells, as regular expressions."""


def chinese(page: str, line: str) -> str:
    """Return a line of a table, or one below it, in Chinese, if `CELLS` has terms for the page."""
    if page not in CELLS:
        return line
    return " | ".join(_cell(CELLS[page], cell) for cell in line.split(" | "))


def _cell(terms: dict[str, str], cell: str) -> str:
    bare = cell.strip("| ")
    shown = terms.get(bare, bare)
    if shown == bare:
        for pattern, instead in PARTS.items():
            shown = re.sub(pattern, instead, shown)
    return cell.replace(bare, shown) if bare else cell
