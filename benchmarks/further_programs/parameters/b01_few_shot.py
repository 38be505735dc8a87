import io
import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)


class Encoder(nn.Module):
    def __init__(self, d_in=40, d=24):
        super().__init__()
        self.fc1 = nn.Linear(d_in, 64)
        self.fc2 = nn.Linear(64, d)

    def forward(self, x):
        return self.fc2(F.gelu(self.fc1(x)))


class Pretrainer(nn.Module):
    """Denoising objective."""

    def __init__(self, encoder, d_in=40, d=24):
        super().__init__()
        self.encoder = encoder
        self.decoder = nn.Sequential(nn.GELU(), nn.Linear(d, 64), nn.GELU(), nn.Linear(64, d_in))

    def forward(self, x):
        keep = (torch.rand_like(x) > 0.3).float()
        return F.mse_loss(self.decoder(self.encoder(x * keep)), x)


class Classifier(nn.Module):
    def __init__(self, encoder, n_classes):
        super().__init__()
        self.encoder = encoder
        self.fc = nn.Linear(24, n_classes)

    def forward(self, x):
        return self.fc(F.gelu(self.encoder(x)))


def factors(n, mixing):
    s = torch.randn(n, 6)
    x = torch.tanh(s @ mixing) + 0.3 * torch.randn(n, 40)
    y = (s[:, 0] > 0).long() + 2 * (s[:, 1] > 0).long()
    return x, y


def pretrain(mixing):
    task = Pretrainer(Encoder())
    opt = torch.optim.Adam(task.parameters(), lr=2e-3)
    for step in range(700):
        x, _ = factors(64, mixing)
        loss = task(x)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print("pretraining loss", loss.item())
    f = io.BytesIO()
    torch.save({"state_dict": task.state_dict(), "step": step}, f)
    f.seek(0)
    return f


def main():
    torch.manual_seed(12)
    mixing = torch.randn(6, 40)
    checkpoint = torch.load(pretrain(mixing))
    x, y = factors(60, mixing)
    vx, vy = factors(2000, mixing)

    encoder = Encoder()
    state = checkpoint["state_dict"]
    encoder.load_state_dict(state, strict=False)
    model = Classifier(encoder, 4)
    opt = torch.optim.AdamW([
        {"params": model.encoder.parameters(), "lr": 2e-4},
        {"params": model.fc.parameters(), "lr": 1e-2},
    ], weight_decay=0.05)
    for epoch in range(40):
        for idx in torch.randperm(len(x)).split(20):
            loss = F.cross_entropy(model(x[idx]), y[idx])
            opt.zero_grad()
            loss.backward()
            opt.step()
    with torch.no_grad():
        print("train loss", loss.item())
        print("RESULT", F.cross_entropy(model(vx), vy).item())


if __name__ == "__main__":
    main()
