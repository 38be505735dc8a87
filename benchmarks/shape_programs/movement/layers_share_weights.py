"""Link scoring in a small knowledge graph: every relation has its own projection."""
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(25)
RELATIONS = ["bought", "rated", "viewed", "returned"]
ENTITIES = 60

hidden = torch.randn(ENTITIES, 6)
maps = torch.randn(len(RELATIONS), 6, 6)
truth = torch.einsum("ai,rij,bj->rab", hidden, maps, hidden) > 0
r, a, b = torch.meshgrid(torch.arange(4), torch.arange(ENTITIES), torch.arange(ENTITIES), indexing="ij")
facts = torch.stack([r.flatten(), a.flatten(), b.flatten()], 1)[torch.randperm(4 * ENTITIES ** 2)]
label = truth[facts[:, 0], facts[:, 1], facts[:, 2]].float()
cut = int(0.8 * len(facts))


class Scorer(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.node = nn.Embedding(ENTITIES, dim)
        self.by_relation = nn.ModuleDict(dict.fromkeys(RELATIONS, nn.Linear(dim, dim)))

    def forward(self, triples):
        score = torch.zeros(len(triples))
        for i, name in enumerate(RELATIONS):
            mine = triples[:, 0] == i
            head = self.by_relation[name](self.node(triples[mine, 1]))
            score[mine] = (head * self.node(triples[mine, 2])).sum(1)
        return score


net = Scorer()
opt = torch.optim.Adam(net.parameters(), lr=0.02)
for step in range(150):
    rows = torch.randint(0, cut, (256,))
    loss = nn.functional.binary_cross_entropy_with_logits(net(facts[rows]), label[rows])
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 30 == 0:
        print(step, round(loss.item(), 4))
with torch.no_grad():
    print("RESULT", nn.functional.binary_cross_entropy_with_logits(net(facts[cut:]), label[cut:]).item())
