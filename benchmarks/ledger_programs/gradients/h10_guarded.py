import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


def make_data(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 12, generator=g)
    w = torch.randn(12, generator=torch.Generator().manual_seed(7))
    return x, (torch.sin(x @ w * 0.6) + 0.3 * x[:, 0] * x[:, 1]).unsqueeze(1)


def main():
    torch.manual_seed(3)
    torch.set_num_threads(1)
    x, y = make_data(2000, 1)
    x[[17, 900]] = float("nan")
    loader = DataLoader(TensorDataset(x, y), batch_size=50, shuffle=True)
    model = nn.Sequential(nn.Linear(12, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    bad_loss = bad_norm = 0
    pending = 0
    for epoch in range(10):
        for i, (xb, yb) in enumerate(loader):
            loss = F.smooth_l1_loss(model(xb), yb)
            if epoch < 5 and not torch.isfinite(loss):
                bad_loss += 1
                continue
            loss.backward()
            pending += 1
            if pending < 2:
                continue
            for p in model.parameters():
                p.grad.div_(pending)
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if torch.isfinite(norm):
                opt.step()
            else:
                bad_norm += 1
            opt.zero_grad()
            pending = 0
        print(f"epoch {epoch} skipped {bad_loss}/{bad_norm}")
    xv, yv = make_data(500, 2)
    with torch.no_grad():
        print(f"result: {F.mse_loss(model(xv), yv).item():.5f}")


main()
