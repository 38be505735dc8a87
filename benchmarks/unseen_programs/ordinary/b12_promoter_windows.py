"""Promoter activity from DNA windows: one-hot, a motif convolution and a max pool."""
import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(19)

WINDOW = 40
MOTIFS = [torch.tensor(m) for m in ([3, 0, 3, 0, 0, 0], [1, 1, 0, 0, 3, 2])]


def simulate(n):
    seq = torch.randint(0, 4, (n, WINDOW))
    has = torch.rand(n, 2) < 0.5
    for i in range(n):
        for k, motif in enumerate(MOTIFS):
            if has[i, k]:
                start = int(torch.randint(0, WINDOW // 2 - 6, (1,))) + k * WINDOW // 2
                seq[i, start:start + 6] = motif
    activity = 1.2 * has[:, 0] - 0.8 * has[:, 1] + 0.1 * torch.randn(n)
    return seq, activity


def one_hot(seq):
    return nn.functional.one_hot(seq, 4).float().transpose(1, 2)


def chunks(seq, y, size):
    for i in range(0, len(seq), size):
        yield seq[i:i + size], y[i:i + size]


class MotifNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.scan = nn.Conv1d(4, 24, 7, padding=3)
        self.readout = nn.Sequential(nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 1))

    def forward(self, x):
        return self.readout(torch.relu(self.scan(x)).amax(-1)).squeeze(-1)


seq, activity = simulate(1600)
seq_val, act_val = simulate(400)
model = MotifNet()
opt = torch.optim.Adam(model.parameters(), lr=3e-3)
mse = nn.MSELoss()

encoded = ((one_hot(s), y) for s, y in chunks(seq, activity, 40))

for epoch in range(10):
    for x, y in encoded:
        opt.zero_grad()
        loss = mse(model(x), y)
        loss.backward()
        opt.step()
    with torch.no_grad():
        print(f"epoch {epoch}: validation {mse(model(one_hot(seq_val)), act_val).item():.4f}")

with torch.no_grad():
    print("RESULT", mse(model(one_hot(seq_val)), act_val).item())
