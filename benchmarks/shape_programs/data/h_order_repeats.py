import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(31)


def river(n):
    """Levels at many gauges; each follows rain with its own slow memory."""
    rain = torch.relu(torch.randn(n, 24, 1))
    level, rows = torch.zeros(24, 1), []
    for t in range(n):
        level = 0.85 * level + 0.3 * rain[t]
        rows.append(level)
    return rain, torch.stack(rows)


class Gauge(nn.Module):
    def __init__(self):
        super().__init__()
        self.memory = nn.GRU(1, 24)
        self.read = nn.Linear(24, 1)

    def forward(self, rain, state=None):
        out, state = self.memory(rain, state)
        return self.read(out), state


rain, level = river(200)
new_rain, new_level = river(200)
net = Gauge()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.85)
for epoch in range(10):
    state = None
    # the years follow each other, and the state goes on from piece to piece
    for piece, truth in zip(rain.split(20), level.split(20)):
        guess, state = net(piece, state)
        loss = nn.functional.mse_loss(guess, truth)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        state = state.detach()
    schedule.step()
    with torch.no_grad():
        error = nn.functional.mse_loss(net(new_rain)[0], new_level).item()
    print(f"epoch {epoch} error {error:.4f}")
print("RESULT", error)
