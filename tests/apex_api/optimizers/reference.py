"""The update rules of Apex's kernels, written out in float64 for one parameter at a time."""

from __future__ import annotations

import math

import torch


def adam(p, grads, *, lr, b1, b2, eps, wd, w_mode, correct):
    m, v = torch.zeros_like(p), torch.zeros_like(p)
    for step, g in enumerate(grads, 1):
        d = g if w_mode else g + wd * p
        m = b1 * m + (1 - b1) * d
        v = b2 * v + (1 - b2) * d * d
        c1, c2 = (1 - b1**step, 1 - b2**step) if correct else (1.0, 1.0)
        update = (m / c1) / ((v / c2).sqrt() + eps)
        p = p - lr * (update + wd * p if w_mode else update)
    return p


def sgd(p, grads, *, lr, momentum, dampening, wd, nesterov, after):
    buffer = None
    for g in grads:
        d = g if after else g + wd * p
        if momentum:
            buffer = d if buffer is None else momentum * buffer + (1 - dampening) * d
            d = d + momentum * buffer if nesterov else buffer
        p = p - lr * (d + wd * p if after else d)
    return p


def adagrad(p, grads, *, lr, eps, wd, w_mode):
    h = torch.zeros_like(p)
    for g in grads:
        d = g if w_mode else g + wd * p
        h = h + d * d
        update = d / (h.sqrt() + eps)
        p = p - lr * (update + wd * p if w_mode else update)
    return p


def lamb(params, grads, *, lr, b1, b2, eps, wd, w_mode, correct, averaging, max_norm, nvlamb):
    ps = list(params)
    ms, vs = [torch.zeros_like(p) for p in ps], [torch.zeros_like(p) for p in ps]
    for step, gs in enumerate(grads, 1):
        norm = math.sqrt(sum(float((g * g).sum()) for g in gs))
        clip = norm / max_norm if norm > max_norm else 1.0
        for i, g in enumerate(gs):
            d = g / clip
            if not w_mode:
                d = d + wd * ps[i]
            ms[i] = b1 * ms[i] + ((1 - b1) if averaging else 1.0) * d
            vs[i] = b2 * vs[i] + (1 - b2) * d * d
            c1, c2 = (1 - b1**step, 1 - b2**step) if correct else (1.0, 1.0)
            update = (ms[i] / c1) / ((vs[i] / c2).sqrt() + eps)
            if w_mode:
                update = update + wd * ps[i]
            ratio = 1.0
            if nvlamb or wd:
                weight_norm, update_norm = float(ps[i].norm()), float(update.norm())
                if weight_norm and update_norm:
                    ratio = weight_norm / update_norm
            ps[i] = ps[i] - lr * ratio * update
    return ps


def novograd(p, grads, *, lr, b1, b2, eps, wd, inside, averaging, order, init_zero, correct):
    m, norm = torch.zeros_like(p), None
    for step, g in enumerate(grads, 1):
        here = float(g.norm()) if order == 2 else float(g.abs().max())
        if norm is None:
            norm = 0.0 if init_zero else here
        if order == 2:
            norm = math.sqrt(b2 * norm**2 + (1 - b2) * here**2)
        else:
            norm = b2 * norm + (1 - b2) * here
        c1, c2 = (1 - b1**step, math.sqrt(1 - b2**step)) if correct else (1.0, 1.0)
        share = (1 - b1) if averaging else 1.0
        if inside:
            m = b1 * m + share * (g / (norm / c2 + eps) + wd * p)
            p = p - lr * (m / c1)
        else:
            m = b1 * m + share * g
            p = p - lr * ((m / c1) / (norm / c2 + eps) + wd * p)
    return p
