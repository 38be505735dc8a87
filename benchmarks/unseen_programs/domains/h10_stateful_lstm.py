import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(71)

STREAMS, CHUNK, LENGTH, HIDDEN = 16, 20, 1600, 32


def telemetry(n_streams, length, seed):
    """The last command seen (they are rare) decides the sign of the response to the input."""
    g = torch.Generator().manual_seed(seed)
    u = torch.randn(n_streams, length, generator=g)
    given = torch.rand(n_streams, length, generator=g) < 0.03
    given[:, 0] = True
    pulse = torch.where(torch.rand(n_streams, length, generator=g) < 0.5, 1.0, -1.0) * given
    last = torch.where(given, torch.arange(length), 0).cummax(1).values
    state = pulse.gather(1, last)
    y = state * u + 0.05 * torch.randn(n_streams, length, generator=g)
    return torch.stack([u, pulse], -1), y.unsqueeze(-1)


class StatefulLSTM(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.LSTM(2, HIDDEN, batch_first=True)
        self.head = nn.Sequential(nn.Linear(HIDDEN + 2, 64), nn.ReLU(), nn.Linear(64, 1))
        self.state = None
        with torch.no_grad():
            for name, p in self.cell.named_parameters():
                if "bias_hh" in name:
                    p.zero_()
                if "bias_ih" in name:
                    p.zero_()
                    p[HIDDEN:2 * HIDDEN].fill_(2.0)

    def reset(self):
        self.state = None

    def forward(self, x):
        if self.state is not None:
            self.state = tuple(s.detach() for s in self.state)
        h, self.state = self.cell(x, self.state)
        return self.head(torch.cat([h, x], -1))


class ChunkLoader:
    """Consecutive chunks of all streams; row k of every batch continues row k of the one before."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return self.x.shape[1] // CHUNK

    def __iter__(self):
        for c in range(len(self)):
            part = slice(c * CHUNK, (c + 1) * CHUNK)
            yield self.x[:, part], self.y[:, part]


def evaluate(model, loader):
    kept, model.state = model.state, None
    model.eval()
    with torch.no_grad():
        err = [(model(x) - y).pow(2).mean() for x, y in loader][3:]
    model.state = kept
    model.train()
    return torch.stack(err).mean().item()


def main():
    train = ChunkLoader(*telemetry(STREAMS, LENGTH, 0))
    valid = ChunkLoader(*telemetry(STREAMS, 600, 1))
    model = StatefulLSTM()
    opt = torch.optim.RMSprop(model.parameters(), lr=2e-3)
    sched = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, factor=0.5, patience=2)
    for epoch in range(14):
        model.reset()
        total = 0.0
        for x, y in train:
            loss = (model(x) - y).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_value_(model.parameters(), 0.5)
            opt.step()
            total += loss.item()
        v = evaluate(model, valid)
        sched.step(v)
        print(f"epoch {epoch} train {total / len(train):.4f} valid {v:.4f} lr {opt.param_groups[0]['lr']:.1e}")
    print("RESULT", evaluate(model, valid))


main()
