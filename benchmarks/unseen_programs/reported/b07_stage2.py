"""Two stages: pretrain on source domain with cosine decay, then continue on the target domain."""
import io

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)

PRETRAIN = dict(lr=5e-3, steps=160)
FINETUNE = dict(lr=1e-3, steps=160)


def domain(n, rotation, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 12, generator=g)
    base = torch.randn(12, 12, generator=torch.Generator().manual_seed(42))
    q, _ = torch.linalg.qr(base)
    w = torch.randn(12, 8, generator=torch.Generator().manual_seed(43))
    z = x if rotation == 0 else x @ torch.matrix_exp(rotation * (q - q.T))
    return x, (z @ w).argmax(1)


def build():
    return nn.Sequential(nn.Linear(12, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 8))


def loop(model, optimizer, data, steps, scheduler=None, batch=64):
    x, y = data
    for step in range(steps):
        idx = torch.randint(0, len(x), (batch,))
        loss = F.cross_entropy(model(x[idx]), y[idx])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        if step % 40 == 0:
            print(f"  step {step:4d} loss {loss.item():.4f}")


def pretrain():
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=PRETRAIN["lr"], weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, PRETRAIN["steps"], eta_min=1e-6)
    loop(model, optimizer, domain(4000, 0.0, 1), PRETRAIN["steps"], scheduler)
    buffer = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, buffer)
    buffer.seek(0)
    return buffer


def finetune(buffer):
    checkpoint = torch.load(buffer)
    model = build()
    model.load_state_dict(checkpoint["model"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=FINETUNE["lr"], weight_decay=0.01)
    optimizer.load_state_dict(checkpoint["optimizer"])
    loop(model, optimizer, domain(2000, 0.35, 2), FINETUNE["steps"])
    return model


@torch.no_grad()
def evaluate(model):
    x, y = domain(1000, 0.35, 3)
    model.eval()
    return (model(x).argmax(1) != y).float().mean().item()


if __name__ == "__main__":
    torch.manual_seed(9)
    print("pretraining")
    ckpt = pretrain()
    print("fine-tuning")
    print("RESULT", evaluate(finetune(ckpt)))
