import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(11)


def series(n, length, spikes):
    t = torch.arange(length + 1).float()
    phase = torch.rand(n, 1) * 6.28
    freq = 0.2 + 0.3 * torch.rand(n, 1)
    x = torch.sin(freq * t + phase) + 0.05 * torch.randn(n, length + 1)
    if spikes:
        hit = torch.rand(n, length + 1) < 0.002
        x = x + hit * 400.0 * torch.randn(n, length + 1)
    return x.unsqueeze(-1)


class Forecaster(nn.Module):
    def __init__(self, hidden=24):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1), requires_grad=False)
        self.rnn = nn.GRU(1, hidden, batch_first=True)
        self.out = nn.Linear(hidden, 1)

    def forward(self, x):
        h, _ = self.rnn(x * self.scale)
        return self.out(h)


def evaluate(model, data):
    model.eval()
    with torch.no_grad():
        err = nn.functional.mse_loss(model(data[:, :-1]), data[:, 1:])
    model.train()
    return err.item()


train_x = series(256, 30, True)
val_x = series(128, 30, False)
model = Forecaster()

trainable = filter(lambda p: p.requires_grad, model.parameters())
optimizer = torch.optim.SGD(trainable, lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=12)
criterion = nn.MSELoss()

for epoch in range(12):
    perm = torch.randperm(len(train_x))
    running = 0.0
    for batch in perm.split(16):
        seq = train_x[batch]
        optimizer.zero_grad()
        loss = criterion(model(seq[:, :-1]), seq[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(trainable, 0.5)
        optimizer.step()
        running += loss.item()
    scheduler.step()
    print(f"epoch {epoch}: train {running / 16:.4f} val {evaluate(model, val_x):.4f}")

print("RESULT", evaluate(model, val_x))
