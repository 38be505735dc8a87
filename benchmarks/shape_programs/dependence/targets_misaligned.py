"""Next note of a tune; the base class cares for data, the subclass for the loss."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
NOTES, T = 12, 24
rule = torch.randint(0, NOTES, (NOTES, NOTES, 2), generator=torch.Generator().manual_seed(1))


class Task:
    def __init__(self, seed):
        self.gen = torch.Generator().manual_seed(seed)

    def tunes(self, n):
        seq = [torch.randint(0, NOTES, (n,), generator=self.gen) for _ in range(2)]
        while len(seq) < T + 1:
            pick = (torch.rand(n, generator=self.gen) < 0.25).long()
            seq.append(rule[seq[-2], seq[-1], pick])
        return torch.stack(seq, 1)

    def batch(self, n=48):
        tune = self.tunes(n)
        return {"heard": tune[:, :-1], "next": tune[:, 1:]}


class Composer(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.emb = nn.Embedding(NOTES, d // 2)
        self.pair = nn.Conv1d(d // 2, d, 2)
        self.out = nn.Sequential(nn.ReLU(), nn.Conv1d(d, d, 1), nn.ReLU(), nn.Conv1d(d, NOTES, 1))

    def forward(self, heard):
        h = F.pad(self.emb(heard).transpose(1, 2), (1, 0))
        return self.out(self.pair(h)).transpose(1, 2)


class NextNote(Task):
    def loss(self, model):
        b = self.batch()
        logits = model(b["heard"])
        logits, labels = logits[:, :-1], b["next"][:, 1:]
        return F.cross_entropy(logits.reshape(-1, NOTES), labels.reshape(-1))


task, model = NextNote(5), Composer()
opt = torch.optim.AdamW(model.parameters(), lr=6e-3)
for step in range(140):
    loss = task.loss(model)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 40 == 0:
        print(step, loss.item())

model.eval()
tune = task.tunes(300)
with torch.no_grad():
    guess = model(tune[:, :10])[:, -1].argmax(-1)
print("RESULT", float((guess != tune[:, 10]).float().mean()))
