"""Fit a tabular regressor with a scikit-style estimator and report one minus R2 on test rows."""
import copy
import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(2)


def housing_like(n, seed):
    r = np.random.default_rng(seed)
    num = r.normal(size=(n, 6))
    cat = r.integers(0, 5, size=(n, 2))
    price = (2.0 * num[:, 0] - 1.5 * np.maximum(num[:, 1], 0) + num[:, 2] * (cat[:, 0] > 2)
             + 0.8 * np.sin(2 * num[:, 3]) + 0.5 * cat[:, 1] + r.normal(0, 0.2, n))
    return num, cat, price.reshape(-1, 1)


class TabularDataModule:
    def __init__(self, batch_size, val_size=0.2):
        self.batch_size, self.val_size = batch_size, val_size

    def setup(self, num, cat, y):
        num_t = torch.tensor(num, dtype=torch.float32)
        cat_t = torch.tensor(cat, dtype=torch.long)
        labels = torch.tensor(y, dtype=torch.float32).unsqueeze(dim=1)
        perm = torch.randperm(len(labels))
        cut = int(len(labels) * self.val_size)
        self.val = TensorDataset(num_t[perm[:cut]], cat_t[perm[:cut]], labels[perm[:cut]])
        self.train = TensorDataset(num_t[perm[cut:]], cat_t[perm[cut:]], labels[perm[cut:]])

    def train_dataloader(self):
        return DataLoader(self.train, self.batch_size, shuffle=True, drop_last=True)

    def val_dataloader(self):
        return DataLoader(self.val, self.batch_size)


class ResNetTabular(nn.Module):
    def __init__(self, n_num, cardinalities, d=48, blocks=2, dropout=0.05):
        super().__init__()
        self.embeds = nn.ModuleList([nn.Embedding(c, 4) for c in cardinalities])
        self.inp = nn.Linear(n_num + 4 * len(cardinalities), d)
        self.blocks = nn.ModuleList(
            [nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.ReLU(), nn.Dropout(dropout),
                           nn.Linear(2 * d, d)) for _ in range(blocks)])
        self.head = nn.Linear(d, 1)

    def forward(self, num, cat):
        x = torch.cat([num] + [e(cat[:, i]) for i, e in enumerate(self.embeds)], 1)
        x = self.inp(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(torch.relu(x))


class TabularRegressor:
    def __init__(self, lr=3e-3, batch_size=64, max_epochs=14, patience=8):
        self.lr, self.batch_size = lr, batch_size
        self.max_epochs, self.patience = max_epochs, patience
        self.loss_fct = nn.MSELoss()

    def fit(self, num, cat, y):
        self.data_module = TabularDataModule(self.batch_size)
        self.data_module.setup(num, cat, y)
        self.model = ResNetTabular(num.shape[1], (cat.max(0) + 1).tolist())
        opt = torch.optim.AdamW(self.model.parameters(), lr=self.lr, weight_decay=1e-4)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, factor=0.3, patience=2)
        best, best_state, stale = float("inf"), None, 0
        for epoch in range(self.max_epochs):
            self.model.train()
            for n, c, label in self.data_module.train_dataloader():
                opt.zero_grad()
                loss = self.loss_fct(self.model(n, c), label)
                loss.backward()
                opt.step()
            val_loss = self._validate()
            plateau.step(val_loss)
            print(f"epoch {epoch} train_loss {loss.item():.4f} val_loss {val_loss:.4f}")
            if val_loss < best:
                best, best_state, stale = val_loss, copy.deepcopy(self.model.state_dict()), 0
            else:
                stale += 1
                if stale >= self.patience:
                    break
        self.model.load_state_dict(best_state)
        return self

    @torch.no_grad()
    def _validate(self):
        self.model.eval()
        out = [self.loss_fct(self.model(n, c), label).item() * len(n)
               for n, c, label in self.data_module.val_dataloader()]
        return sum(out) / len(self.data_module.val)

    @torch.no_grad()
    def predict(self, num, cat):
        self.model.eval()
        return self.model(torch.tensor(num, dtype=torch.float32), torch.tensor(cat)).numpy()

    def score(self, num, cat, y):
        res = ((self.predict(num, cat).ravel() - np.ravel(y)) ** 2).sum()
        return 1 - res / ((y - y.mean()) ** 2).sum()


if __name__ == "__main__":
    num, cat, y = housing_like(1200, 0)
    scale = y.mean(), y.std()
    model = TabularRegressor().fit(num, cat, (y - scale[0]) / scale[1])
    num_t, cat_t, y_t = housing_like(500, 1)
    print("RESULT", 1 - float(model.score(num_t, cat_t, (y_t - scale[0]) / scale[1])))
