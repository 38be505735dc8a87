import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)

w_true = torch.randn(40, 4)


def sample(n, noise):
    x = torch.randn(n, 40)
    y = (x @ w_true + noise * torch.randn(n, 4)).argmax(1)
    return x, y


class Trainer:
    def __init__(self, model, lr):
        self.model = model
        self.opt = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
        self.lossf = nn.CrossEntropyLoss()
        self.best = float("inf")
        self.best_state = None

    def fit(self, x, y, xv, yv, epochs):
        for epoch in range(epochs):
            self.model.train()
            for idx in torch.randperm(len(x)).split(32):
                self.opt.zero_grad()
                self.lossf(self.model(x[idx]), y[idx]).backward()
                self.opt.step()
            v = self.evaluate(xv, yv)
            print(f"epoch {epoch:2d} val {v:.4f}")
            if v < self.best:
                self.best = v
                self.best_state = self.model.state_dict()
        self.model.load_state_dict(self.best_state)

    @torch.no_grad()
    def evaluate(self, x, y):
        self.model.eval()
        return self.lossf(self.model(x), y).item()


x, y = sample(400, 4.0)
xv, yv = sample(600, 4.0)
xt, yt = sample(2000, 4.0)
model = nn.Sequential(nn.Linear(40, 128), nn.ReLU(), nn.Linear(128, 4))
t = Trainer(model, 2e-3)
t.fit(x, y, xv, yv, 40)
print("RESULT", t.evaluate(xt, yt))
