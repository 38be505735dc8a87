"""Predicts hospital readmission from the present stay and attention over earlier visits."""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
torch.manual_seed(23)

FEATURES, MAX_VISITS = 10, 6


class Stays(Dataset):
    """Present stay, padded earlier visits and the number of those visits."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.stay = torch.randn(n, FEATURES, generator=g)
        self.visits = torch.randn(n, MAX_VISITS, FEATURES, generator=g)
        self.count = torch.randint(0, MAX_VISITS + 1, (n,), generator=g)
        alive = torch.arange(MAX_VISITS) < self.count[:, None]
        self.visits = self.visits * alive[..., None]
        severity = self.visits[..., 0].clamp(min=0) * alive
        risk = 1.2 * self.stay[:, 0] - 0.8 * self.stay[:, 1] * self.stay[:, 2]
        risk = risk + 1.5 * severity.sum(1) - 1.2
        self.label = (torch.rand(n, generator=g) < torch.sigmoid(1.5 * risk)).float()

    def __len__(self):
        return len(self.label)

    def __getitem__(self, i):
        return {
            "stay": self.stay[i],
            "visits": self.visits[i],
            "count": self.count[i],
            "label": self.label[i],
        }


class HistoryAttention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)
        self.scale = dim ** -0.5

    def forward(self, stay, visits, count):
        absent = torch.arange(visits.shape[1]) >= count[:, None]
        q = self.query(stay).unsqueeze(1)
        score = (q * self.key(visits)).sum(-1) * self.scale
        score = score.masked_fill(absent, float("-inf"))
        share = torch.softmax(score, dim=-1)
        return (share.unsqueeze(-1) * self.value(visits)).sum(1)


class Readmission(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.stay_in = nn.Sequential(nn.Linear(FEATURES, dim), nn.GELU())
        self.visit_in = nn.Sequential(nn.Linear(FEATURES, dim), nn.GELU())
        self.attend = HistoryAttention(dim)
        self.head = nn.Sequential(nn.Linear(2 * dim + 1, dim), nn.GELU(), nn.Linear(dim, 1))

    def forward(self, batch):
        stay = self.stay_in(batch["stay"])
        history = self.attend(stay, self.visit_in(batch["visits"]), batch["count"])
        size = batch["count"].float().unsqueeze(-1) / MAX_VISITS
        return self.head(torch.cat([stay, history, size], dim=-1)).squeeze(-1)


class Trainer:
    def __init__(self, model, train, val):
        self.model, self.train, self.val = model, train, val
        self.opt = torch.optim.Adam(model.parameters(), lr=2e-3)
        self.loss = nn.BCEWithLogitsLoss()

    def epoch(self):
        self.model.train()
        for batch in self.train:
            loss = self.loss(self.model(batch), batch["label"])
            self.opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.opt.step()

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        pairs = [(self.loss(self.model(b), b["label"]).item(), len(b["label"])) for b in self.val]
        return sum(v * n for v, n in pairs) / sum(n for _, n in pairs)

    def fit(self, epochs):
        for e in range(epochs):
            self.epoch()
            print(f"epoch {e} val {self.validate():.4f}")
        return self.validate()


if __name__ == "__main__":
    train = DataLoader(Stays(1600, 1), batch_size=64, shuffle=True)
    val = DataLoader(Stays(500, 2), batch_size=100)
    print("RESULT", Trainer(Readmission(), train, val).fit(8))
