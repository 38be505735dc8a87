"""Multi-label diagnosis coding from lab panels. Output bias starts at the log-odds of each code."""
import torch
import torch.nn as nn
from torch.utils.data import TensorDataset, DataLoader, random_split

torch.set_num_threads(1)
torch.manual_seed(8)

N_LABS, N_CODES, N_PATIENTS = 30, 24, 1600


def cohort():
    labs = torch.randn(N_PATIENTS, N_LABS)
    w = torch.randn(N_LABS, N_CODES) * 0.7
    prevalence = torch.linspace(-1.0, -6.5, N_CODES)
    risk = labs @ w * 0.6 + prevalence
    codes = (torch.sigmoid(risk) > torch.rand_like(risk)).float()
    codes[:, -1] = 0.0
    codes[1400, -1] = 1.0
    return labs, codes


class Coder(nn.Module):
    def __init__(self, log_odds):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(N_LABS, 64), nn.GELU(), nn.Dropout(0.1),
            nn.Linear(64, 64), nn.GELU(),
        )
        self.head = nn.Linear(64, len(log_odds))
        nn.init.normal_(self.head.weight, std=0.01)
        with torch.no_grad():
            self.head.bias.copy_(log_odds)

    def forward(self, x):
        return self.head(self.body(x))


labs, codes = cohort()
train = TensorDataset(labs[:1200], codes[:1200])
held_out = labs[1200:], codes[1200:]

count = train.tensors[1].sum(0)
n = len(train)
log_odds = torch.log(count / (n - count))

model = Coder(log_odds)
criterion = nn.BCEWithLogitsLoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-3)
loader = DataLoader(train, batch_size=50, shuffle=True)

for epoch in range(8):
    model.train()
    total = 0.0
    for x, y in loader:
        optimizer.zero_grad(set_to_none=True)
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(x)
    print(f"epoch {epoch + 1} bce {total / n:.4f}")

model.eval()
with torch.no_grad():
    print("RESULT", float(criterion(model(held_out[0]), held_out[1])))
