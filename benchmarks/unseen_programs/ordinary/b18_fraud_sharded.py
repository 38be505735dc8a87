"""Card fraud scoring. Script moved from the cluster to a workstation."""
import os
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(47)

WORLD_SIZE = int(os.environ.get("FRAUD_WORLD_SIZE", "16"))
RANK = int(os.environ.get("FRAUD_RANK", "0"))


def transactions(n):
    amount = torch.randn(n, 1)
    hour = torch.rand(n, 1) * 6.28
    merchant = torch.randn(n, 18)
    x = torch.cat([amount, hour.sin(), hour.cos(), merchant], 1)
    risk = 1.5 * amount * hour.sin() + merchant[:, :6].sum(1, keepdim=True) - merchant[:, 6:7] * merchant[:, 7:8]
    y = (torch.sigmoid(1.5 * risk) > torch.rand(n, 1)).float()
    return x, y


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(21, 64), nn.ReLU(),
            nn.Linear(64, 64), nn.ReLU(),
            nn.Linear(64, 1))

    def forward(self, x):
        return self.layers(x)


def main():
    train = TensorDataset(*transactions(3200))
    test_x, test_y = transactions(1500)
    sampler = DistributedSampler(train, num_replicas=WORLD_SIZE, rank=RANK, shuffle=True, seed=0)
    loader = DataLoader(train, batch_size=50, sampler=sampler)

    model = Scorer()
    criterion = nn.BCEWithLogitsLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    budget, done = 320, 0
    while done < budget:
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            done += 1
            if done % 80 == 0:
                print(f"update {done}: {loss.item():.4f}")

    with torch.no_grad():
        print("RESULT", criterion(model(test_x), test_y).item())


main()
