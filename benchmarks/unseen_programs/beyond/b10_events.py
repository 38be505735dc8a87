"""Predicts the kind of a customer's next event from the times and kinds of the last ones."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(19)

KINDS, LENGTH, START = 4, 12, 1_718_000_000


def event_log(n, seed):
    """Unix times in seconds and kinds; short pauses and long pauses lead to other kinds."""
    gen = torch.Generator().manual_seed(seed)
    now = START + torch.randint(0, 30 * 86400, (n,), generator=gen)
    kind = torch.randint(0, KINDS, (n,), generator=gen)
    times, kinds = [now], [kind]
    for _ in range(LENGTH):
        quick = torch.rand(n, generator=gen) < 0.5
        pause = torch.where(quick, torch.randint(1, 15, (n,), generator=gen),
                            torch.randint(25, 60, (n,), generator=gen))
        now = now + pause
        follow = torch.where(quick, (kind + 1) % KINDS, (kind + 3) % KINDS)
        noise = torch.randint(0, KINDS, (n,), generator=gen)
        times.append(now)
        kinds.append(kind)
        kind = torch.where(torch.rand(n, generator=gen) < 0.1, noise, follow)
    kinds.append(kind)
    return torch.stack(times, 1), torch.stack(kinds[1:], 1)


def features(times):
    stamp = times.float()
    pause = stamp[:, 1:] - stamp[:, :-1]
    return torch.log1p(pause).unsqueeze(-1)


class NextEvent(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.kind = nn.Embedding(KINDS, 15)
        self.rnn = nn.GRU(16, width, batch_first=True)
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, KINDS))

    def forward(self, pause, kinds):
        h, _ = self.rnn(torch.cat([self.kind(kinds), pause], dim=-1))
        return self.head(h)


def loss_of(model, pause, kinds):
    logits = model(pause, kinds[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), kinds[:, 1:].flatten())


train_times, train_kinds = event_log(2400, 1)
val_times, val_kinds = event_log(600, 2)
train_pause, val_pause = features(train_times), features(val_times)
print("kinds", train_kinds.flatten().bincount().tolist(), "pauses", tuple(train_pause.shape))

model = NextEvent()
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=1e-4)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 8e-3, total_steps=8 * 38)
for epoch in range(8):
    for chunk in torch.randperm(len(train_pause)).split(64):
        loss = loss_of(model, train_pause[chunk], train_kinds[chunk])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        val = loss_of(model, val_pause, val_kinds).item()
    print(f"epoch {epoch} loss {loss.item():.4f} val {val:.4f}")
print("RESULT", round(val, 4))
