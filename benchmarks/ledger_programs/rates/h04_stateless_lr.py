import io

import torch
from torch import nn

torch.manual_seed(3)
torch.set_num_threads(1)


def lr_at(step, peak=0.3, warm=30, total=360):
    if step < warm:
        return peak * (step + 1) / warm
    left = (total - step) / (total - warm)
    return peak * left ** 2


class Run:
    def __init__(self):
        self.model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
        self.optim = torch.optim.SGD(self.model.parameters(), lr=1.0, momentum=0.9)
        self.global_step = 0

    def state(self):
        b = io.BytesIO()
        torch.save((self.model.state_dict(), self.optim.state_dict(), self.global_step), b)
        return b.getvalue()

    @classmethod
    def restore(cls, blob):
        self = cls()
        m, o, self.global_step = torch.load(io.BytesIO(blob))
        self.model.load_state_dict(m)
        self.optim.load_state_dict(o)
        return self

    def advance(self, n):
        for _ in range(n):
            x = torch.rand(40, 2) * 4 - 2
            y = ((x[:, 0] * 3).sin() > x[:, 1]).long()
            y = torch.where(torch.rand(40) < 0.1, 1 - y, y)
            loss = nn.functional.cross_entropy(self.model(x), y)
            self.optim.zero_grad()
            loss.backward()
            for g in self.optim.param_groups:
                g["lr"] = lr_at(self.global_step)
            self.optim.step()
            self.global_step += 1
        print(f"step {self.global_step} loss {loss.item():.4f} lr {g['lr']:.4f}")
        return self


blob = Run().advance(120).state()
blob = Run.restore(blob).advance(120).state()
run = Run.restore(blob).advance(120)
x = torch.rand(2000, 2) * 4 - 2
with torch.no_grad():
    err = (run.model(x).argmax(1) != ((x[:, 0] * 3).sin() > x[:, 1]).long()).float().mean().item()
print(f"result: {err:.4f}")
