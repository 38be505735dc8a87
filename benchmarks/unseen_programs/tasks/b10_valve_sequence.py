"""Forecasts reactor temperature from a log of valve commands and flow readings."""
import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(19)

CFG = {"steps": 18, "hidden": 48, "lr": 4e-3, "epochs": 14, "batch": 64, "clip": 1.0}


def runs(n, gen):
    """The mode chosen at the start decides how the flow acts on the temperature at the end."""
    mode = torch.randint(0, 3, (n,), generator=gen)
    flow = torch.randn(n, CFG["steps"], generator=gen)
    command = torch.zeros(n, CFG["steps"], 3)
    command[torch.arange(n), 0, mode] = 1.0
    offset = torch.tensor([-1.5, 0.0, 1.5])[mode]
    temp = offset[:, None] + 0.4 * flow + 0.05 * torch.randn(n, CFG["steps"], generator=gen)
    return torch.cat([flow.unsqueeze(-1), command], dim=-1), temp


class Cell(nn.Module):
    """Minimal gated unit."""

    def __init__(self, inputs, hidden):
        super().__init__()
        self.gate = nn.Linear(inputs + hidden, hidden)
        self.cand = nn.Linear(inputs + hidden, hidden)
        nn.init.constant_(self.gate.bias, -1.0)

    def forward(self, x, h):
        z = torch.sigmoid(self.gate(torch.cat([x, h], -1)))
        c = torch.tanh(self.cand(torch.cat([x, z * h], -1)))
        return (1 - z) * h + z * c


class Forecaster(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.hidden = hidden
        self.cell = Cell(4, hidden)
        self.read = nn.Linear(hidden, 1)

    def start(self, n):
        return torch.zeros(n, self.hidden)

    def forward(self, x, state):
        state = self.cell(x, state)
        return self.read(state).squeeze(-1), state


def unroll(model, seq):
    state = model.start(len(seq))
    for t in range(seq.shape[1]):
        pred, state = model(seq[:, t], state)
        state = state.detach()
        yield t, pred


def window_loss(model, seq, temp, skip=9):
    """The first readings are the warm-up of the plant and are not scored."""
    terms = [(pred - temp[:, t]).pow(2).mean() for t, pred in unroll(model, seq) if t >= skip]
    return torch.stack(terms).mean()


def train(model, data, val, cfg):
    seq, temp = data
    opt = torch.optim.Adam(model.parameters(), lr=cfg["lr"])
    for epoch in range(cfg["epochs"]):
        for pick in torch.randperm(len(seq)).split(cfg["batch"]):
            loss = window_loss(model, seq[pick], temp[pick])
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), cfg["clip"])
            opt.step()
        with torch.no_grad():
            score = window_loss(model, *val).item()
        print(f"epoch {epoch} train {loss.item():.4f} val {score:.4f}")
    return score


gen = torch.Generator().manual_seed(4)
print("RESULT", train(Forecaster(CFG["hidden"]), runs(1000, gen), runs(300, gen), CFG))
