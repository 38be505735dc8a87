# Patients' visit records: every group of patients is one micro-batch, four groups make a step.
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Clinic:
    def __init__(self, visits, shift):
        self.visits = visits
        self.shift = shift

    def draw(self, gen):
        x = torch.randn(self.visits, 5, generator=gen)
        y = x[:, 0] + 0.5 * torch.sin(2 * x[:, 1]) + self.shift * torch.relu(x[:, 2])
        return x, y[:, None]


class Rates(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, x):
        return self.body(x)


def accumulate(model, groups, score):
    values = []
    for x, y in groups:
        part = score(model(x), y) / len(groups)
        part.backward()
        values.append(part.item())
    return sum(values)


gen = torch.Generator().manual_seed(11)
clinics = [Clinic(160, 0.0), Clinic(6, 2.5), Clinic(4, 2.5), Clinic(5, 2.5)]
model = Rates()
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
score = nn.MSELoss()
for step in range(150):
    groups = [clinic.draw(gen) for clinic in clinics]
    opt.zero_grad()
    value = accumulate(model, groups, score)
    opt.step()
    if step % 30 == 0:
        print(step, round(value, 4))
total, rows = 0.0, 0
with torch.no_grad():
    for _ in range(20):
        for clinic in clinics:
            x, y = clinic.draw(gen)
            total += ((model(x) - y) ** 2).sum().item()
            rows += len(x)
print("RESULT", total / rows)
