"""Trains a classifier in two sessions, with checkpoints, and reports its best weights."""
import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(73)


def table(n, seed):
    gen = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 20, generator=gen)
    logit = 1.5 * x[:, 0] - x[:, 1] + x[:, 2] * x[:, 3]
    return x, (torch.rand(n, generator=gen) < torch.sigmoid(1.5 * logit)).long()


class Session:
    def __init__(self, folder, data, val, lr=2e-3):
        self.last = os.path.join(folder, "last.pt")
        self.best_path = os.path.join(folder, "best.pt")
        self.data, self.val = data, val
        self.model = nn.Sequential(nn.Linear(20, 128), nn.ReLU(), nn.Linear(128, 128),
                                   nn.ReLU(), nn.Linear(128, 2))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=lr)
        self.epoch = 0
        self.best = float("inf")

    def save(self):
        torch.save({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(),
                    "epoch": self.epoch, "best": self.best}, self.last)

    def resume(self):
        state = torch.load(self.last)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.epoch = state["epoch"]
        print("resumed after epoch", self.epoch)

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        loss = F.cross_entropy(self.model(self.val[0]), self.val[1]).item()
        self.model.train()
        return loss

    def run(self, until):
        x, y = self.data
        while self.epoch < until:
            for chunk in torch.randperm(len(x)).split(64):
                loss = F.cross_entropy(self.model(x[chunk]), y[chunk])
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
            self.epoch += 1
            val = self.validate()
            if val < self.best:
                self.best = val
                torch.save(self.model.state_dict(), self.best_path)
                print(f"epoch {self.epoch} loss {loss.item():.4f} val {val:.4f} saved")
            self.save()


train, val, test = table(800, 1), table(400, 2), table(2000, 3)
with tempfile.TemporaryDirectory() as folder:
    Session(folder, train, val).run(until=15)
    second = Session(folder, train, val)
    second.resume()
    second.run(until=25)
    second.model.load_state_dict(torch.load(second.best_path))
    second.model.eval()
    with torch.no_grad():
        result = F.cross_entropy(second.model(test[0]), test[1]).item()
print("RESULT", round(result, 4))
