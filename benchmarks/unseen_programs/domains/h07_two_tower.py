import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(33)

USERS, ITEMS, RANK, DIM = 1500, 600, 6, 16


def interactions():
    u, v = torch.randn(USERS, RANK), torch.randn(ITEMS, RANK)
    popularity = -0.7 * torch.log(torch.arange(1, ITEMS + 1).float())
    logits = 1.3 * u @ v.T + popularity[torch.randperm(ITEMS)]
    picks = torch.multinomial(logits.softmax(1), 21)
    users = torch.arange(USERS).repeat_interleave(20)
    return users, picks[:, :20].flatten(), picks[:, :20], picks[:, 20]


class TwoTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.user = nn.Embedding(USERS + 1, DIM, padding_idx=0, sparse=True)
        self.item = nn.Embedding(ITEMS, DIM, sparse=True)
        for e in (self.user, self.item):
            nn.init.normal_(e.weight, std=0.1)
        self.user_head = nn.Sequential(nn.Linear(DIM, 32), nn.ReLU(), nn.Linear(32, DIM))
        self.item_head = nn.Sequential(nn.Linear(DIM, 32), nn.ReLU(), nn.Linear(32, DIM))

    def users_of(self, u):
        e = self.user(u + 1)
        return e + self.user_head(e)

    def items_of(self, i):
        e = self.item(i)
        return e + self.item_head(e)


def in_batch_softmax(q, k, items, logq):
    logits = q @ k.T - logq[items]
    same = items[:, None] == items[None, :]
    same.fill_diagonal_(False)
    return F.cross_entropy(logits.masked_fill(same, -1e9), torch.arange(len(q)))


@torch.no_grad()
def miss_rate(model, seen, held, k=50):
    model.eval()
    scores = model.users_of(torch.arange(USERS)) @ model.items_of(torch.arange(ITEMS)).T
    scores.scatter_(1, seen, -1e9)
    hit = (scores.topk(k, dim=1).indices == held[:, None]).any(1)
    return 1 - hit.float().mean().item()


def main():
    users, items, seen, held = interactions()
    freq = torch.bincount(items, minlength=ITEMS).float() + 1
    logq = (freq / freq.sum()).log()
    model = TwoTower()
    tables = [model.user.weight, model.item.weight]
    dense = [p for n, p in model.named_parameters() if "head" in n]
    optimizers = [torch.optim.SparseAdam(tables, lr=8e-3), torch.optim.AdamW(dense, lr=2e-3, weight_decay=1e-2)]
    print("untrained", miss_rate(model, seen, held))
    for epoch in range(6):
        model.train()
        total = steps = 0
        for idx in torch.randperm(len(users)).split(256):
            u, i = users[idx], items[idx]
            loss = in_batch_softmax(model.users_of(u), model.items_of(i), i, logq)
            for o in optimizers:
                o.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(dense, 1.0)
            for o in optimizers:
                o.step()
            total, steps = total + loss.item(), steps + 1
        print(f"epoch {epoch} loss {total / steps:.3f} miss@50 {miss_rate(model, seen, held):.4f}")
    print("RESULT", miss_rate(model, seen, held))


main()
