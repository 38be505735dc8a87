"""Learn product image embeddings with batch-hard triplets and test nearest-neighbour search."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(3)


class ProductPhotos:
    """Small photos of products: each product has a pattern, each photo its own light and place."""

    def __init__(self, n_products, size, gen):
        self.gen = gen
        coarse = torch.randn(n_products, 3, 5, 5, generator=gen)
        self.patterns = F.interpolate(coarse, size=(size + 4, size + 4), mode="bilinear")
        self.size = size

    def photos(self, products):
        out = []
        for p in products.tolist():
            dx, dy = torch.randint(0, 5, (2,), generator=self.gen).tolist()
            img = self.patterns[p, :, dy:dy + self.size, dx:dx + self.size]
            light = 0.5 + torch.rand(1, generator=self.gen)
            tint = 0.5 * torch.randn(3, 1, 1, generator=self.gen)
            noise = 0.5 * torch.randn(img.shape, generator=self.gen)
            out.append(light * img + tint + noise)
        return torch.stack(out)


class Embedder(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(3, 24, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(24, 32, 3, stride=2, padding=1), nn.ReLU(),
        )
        self.fc = nn.Linear(32 * 16, dim)

    def forward(self, x):
        return F.normalize(self.fc(self.conv(x).flatten(1)), dim=1)


def pairwise_distance(z):
    sq = (z ** 2).sum(1)
    d2 = sq[:, None] + sq[None, :] - 2 * z @ z.T
    return d2.clamp(min=1e-8).sqrt()


def batch_hard_loss(z, labels, margin=0.3):
    dist = pairwise_distance(z)
    same = labels[:, None] == labels[None, :]
    hardest_pos = dist.masked_fill(~same, 0.0).max(dim=1).values
    hardest_neg = dist.masked_fill(same, 0.0).min(dim=1).values
    return F.relu(hardest_pos - hardest_neg + margin).mean()


@torch.no_grad()
def search_error(model, gallery, gallery_ids, queries, query_ids):
    model.eval()
    g, q = model(gallery), model(queries)
    nearest = torch.cdist(q, g).argmin(1)
    model.train()
    return (gallery_ids[nearest] != query_ids).float().mean().item()


gen = torch.Generator().manual_seed(8)
train_set = ProductPhotos(200, 16, gen)
test_set = ProductPhotos(60, 16, gen)
ids = torch.arange(60)
gallery, gallery_ids = test_set.photos(ids.repeat(2)), ids.repeat(2)
queries, query_ids = test_set.photos(ids.repeat(5)), ids.repeat(5)

model = Embedder()
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
sched = torch.optim.lr_scheduler.StepLR(opt, 150, gamma=0.3)
print("search error before", search_error(model, gallery, gallery_ids, queries, query_ids))
running = None
for step in range(300):
    chosen = torch.randperm(200, generator=gen)[:16]
    labels = chosen.repeat_interleave(4)
    z = model(train_set.photos(labels))
    loss = batch_hard_loss(z, labels)
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    running = loss.item() if running is None else 0.95 * running + 0.05 * loss.item()
    if (step + 1) % 75 == 0:
        err = search_error(model, gallery, gallery_ids, queries, query_ids)
        print(f"step {step + 1} loss {running:.4f} search error {err:.3f}")
print(f"RESULT {search_error(model, gallery, gallery_ids, queries, query_ids):.5f}")
