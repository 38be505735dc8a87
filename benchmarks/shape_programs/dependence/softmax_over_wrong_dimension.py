"""Sleep stages from a night of features, one stage per half minute."""
import torch
import torch.nn as nn

torch.manual_seed(0)
torch.set_num_threads(1)
STAGES, NIGHT, DIM = 5, 40, 6
centres = torch.randn(STAGES, DIM, generator=torch.Generator().manual_seed(8))
stay = torch.tensor([0.9, 0.6, 0.93, 0.85, 0.8])


def nights(n, gen):
    stage = torch.randint(0, STAGES, (n,), generator=gen)
    path = []
    for _ in range(NIGHT):
        leave = torch.rand(n, generator=gen) > stay[stage]
        stage = torch.where(leave, torch.randint(0, STAGES, (n,), generator=gen), stage)
        path.append(stage)
    y = torch.stack(path, 1)
    return centres[y] + 0.6 * torch.randn(n, NIGHT, DIM, generator=gen), y


class Stager(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.rnn = nn.GRU(DIM, hidden, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * hidden, STAGES)

    def energies(self, x):
        return self.head(self.rnn(x)[0])

    def log_likelihood(self, x, y):
        e = self.energies(x)
        chosen = e.gather(-1, y.unsqueeze(-1)).squeeze(-1)
        norm = torch.logsumexp(e, dim=1, keepdim=True).expand_as(e)
        return chosen - norm.gather(-1, y.unsqueeze(-1)).squeeze(-1)


gen = torch.Generator().manual_seed(2)
model = Stager()
opt = torch.optim.Adam(model.parameters(), lr=5e-3)
for step in range(60):
    x, y = nights(16, gen)
    nll = -model.log_likelihood(x, y).mean()
    opt.zero_grad()
    nll.backward()
    opt.step()
    if step % 20 == 0:
        print(step, nll.item())

model.eval()
x, y = nights(64, gen)
with torch.no_grad():
    print("RESULT", float((model.energies(x).argmax(-1) != y).float().mean()))
