"""Trains a causal model of machine states that predicts the next state and the one after."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(263)

STATES, LENGTH = 10, 26


def logs(n, seed):
    g = torch.Generator().manual_seed(seed)
    table = (2.0 * torch.randn(STATES, STATES, STATES,
                               generator=torch.Generator().manual_seed(0))).softmax(-1)
    seq = [torch.randint(0, STATES, (n,), generator=g) for _ in range(2)]
    while len(seq) < LENGTH:
        seq.append(torch.multinomial(table[seq[-2], seq[-1]], 1, generator=g).squeeze(1))
    return torch.stack(seq, dim=1)


class CausalConv(nn.Module):
    def __init__(self, dim, width=3):
        super().__init__()
        self.pad = width - 1
        self.conv = nn.Conv1d(dim, 2 * dim, width)

    def forward(self, h):
        out = self.conv(F.pad(h, (self.pad, 0)))
        return h + F.glu(out, dim=1)


class TwoAhead(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.embed = nn.Embedding(STATES, dim)
        self.trunk = nn.Sequential(CausalConv(dim), CausalConv(dim))
        self.heads = nn.ModuleList([nn.Linear(dim, STATES) for _ in range(2)])

    def forward(self, seq):
        h = self.trunk(self.embed(seq).transpose(1, 2)).transpose(1, 2)
        return [head(h) for head in self.heads]


def ahead_loss(logits, seq, distance):
    """logits at position t are for the state at position t + distance."""
    return F.cross_entropy(logits[:, :-distance].flatten(0, 1), seq[:, distance:].flatten())


def total_loss(model, seq, second=0.3):
    near, far = model(seq)
    return ahead_loss(near, seq, 1) + second * ahead_loss(far, seq, 2)


@torch.no_grad()
def next_state_nats(model, seq):
    model.eval()
    near, _ = model(seq)
    value = ahead_loss(near, seq, 1).item()
    model.train()
    return value


def main():
    train, val = logs(2000, 1), logs(300, 2)
    model = TwoAhead()
    opt = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.01)
    steps = 8 * len(train) // 50
    sched = torch.optim.lr_scheduler.LambdaLR(
        opt, lambda s: min(1.0, (s + 1) / 20) * max(0.02, 1 - s / steps))
    for epoch in range(8):
        for pick in torch.randperm(len(train)).split(50):
            loss = total_loss(model, train[pick])
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
        print(f"epoch {epoch} loss {loss.item():.4f} next {next_state_nats(model, val):.4f}")
    return next_state_nats(model, val)


if __name__ == "__main__":
    print("RESULT", main())
