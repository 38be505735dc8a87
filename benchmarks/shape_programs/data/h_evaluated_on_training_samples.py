import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(8)
NODES, KINDS = 240, 3

kind = torch.randint(KINDS, (NODES,))
same = kind[:, None] == kind[None, :]
edge = (torch.rand(NODES, NODES) < torch.where(same, 0.10, 0.02)).float().triu(1)
adjacency = edge + edge.T + torch.eye(NODES)
adjacency = adjacency / adjacency.sum(1, keepdim=True)
features = torch.randn(NODES, 10)
features[torch.arange(NODES), kind] += 1.0
order = torch.randperm(NODES)
known, hidden = order[:120], order[120:]


class Citations(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(10, 32)
        self.second = nn.Linear(32, KINDS)

    def forward(self, x, a):
        return self.second(a @ torch.relu(self.first(a @ x)))


net = Citations()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2, weight_decay=1e-3)
for step in range(80):
    net.train()
    logits = net(features, adjacency)
    loss = nn.functional.cross_entropy(logits[known], kind[known])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 9:
        net.eval()
        with torch.no_grad():
            guess = net(features, adjacency)[hidden].argmax(1)
        print(f"step {step} loss {loss.item():.3f} error {(guess != kind[hidden]).float().mean():.3f}")

print("RESULT", (guess != kind[hidden]).float().mean().item())
