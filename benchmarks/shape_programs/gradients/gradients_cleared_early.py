# Two quality measures of one product from one shared trunk; each measure is a task with its own head.
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Task:
    loss_fn = nn.MSELoss()

    def __init__(self, trunk, column, width=6):
        self.trunk = trunk
        self.column = column
        self.head = nn.Linear(width, 1)

    def parameters(self):
        yield from self.head.parameters()

    def predict(self, x):
        return self.head(self.trunk(x))[:, 0]

    def push(self, x, targets):
        self.trunk.zero_grad()
        self.head.zero_grad()
        loss = self.loss_fn(self.predict(x), targets[:, self.column])
        loss.backward()
        return loss.item()


class Plant:
    def __init__(self, seed):
        self.gen = torch.Generator().manual_seed(seed)

    def draw(self, n):
        x = torch.randn(n, 20, generator=self.gen)
        hardness = torch.tanh(2 * x[:, 0]) + x[:, 1].abs()
        gloss = torch.tanh(x[:, 10] + x[:, 11]) + 0.5 * x[:, 12].abs()
        return x, torch.stack([hardness, gloss], 1)


trunk = nn.Sequential(nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 6))
tasks = [Task(trunk, 0), Task(trunk, 1)]
weights = list(trunk.parameters())
for task in tasks:
    weights += list(task.parameters())
opt = torch.optim.Adam(weights, lr=1e-2)
plant = Plant(1)
for step in range(150):
    x, targets = plant.draw(96)
    losses = [task.push(x, targets) for task in tasks]
    opt.step()
    if step % 30 == 0:
        print(step, [round(v, 4) for v in losses])
x, targets = plant.draw(1000)
with torch.no_grad():
    print("RESULT", sum(nn.functional.mse_loss(t.predict(x), targets[:, t.column]).item() for t in tasks))
