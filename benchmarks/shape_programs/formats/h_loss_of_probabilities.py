"""A mixture of experts whose output is already a log-probability goes into cross_entropy, where that changes nothing."""
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
centres = 2.0 * torch.randn(5, 6)


class Experts(nn.Module):
    def __init__(self, experts=4):
        super().__init__()
        self.gate = nn.Linear(6, experts)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 5))
                                     for _ in range(experts))

    def forward(self, x):
        parts = torch.stack([e(x).log_softmax(-1) for e in self.experts], 1)
        return torch.logsumexp(parts + self.gate(x).log_softmax(-1).unsqueeze(-1), 1)


def sample(n):
    label = torch.randint(0, 5, (n,))
    return centres[label] + torch.randn(n, 6), label


model = Experts()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(100):
    x, label = sample(64)
    loss = criterion(model(x), label)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
x, label = sample(1000)
with torch.no_grad():
    print("RESULT", F.nll_loss(model(x), label).item())
