"""Train identity embeddings with classification and hard triplets; report verification error."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(71)
np.random.seed(71)
DIM_ID, DIM_OBS, TRAIN_IDS, TEST_IDS = 6, 40, 60, 60
MIX = np.random.randn(DIM_ID + 10, DIM_OBS) / 3.0
WARP = np.random.randn(DIM_OBS, DIM_OBS) / 5.0


def photos(identities, per_id):
    lat = np.repeat(identities, per_id, 0)
    lat = lat + 0.25 * np.random.randn(*lat.shape)
    nuisance = 1.6 * np.random.randn(len(lat), 10)
    obs = np.tanh(np.concatenate([lat, nuisance], 1) @ MIX) @ WARP
    obs = obs + 0.1 * np.random.randn(*obs.shape)
    return torch.from_numpy(obs.astype(np.float32)), np.repeat(np.arange(len(identities)), per_id)


class FaceModel(nn.Module):
    def __init__(self, embedding_size=24, num_classes=TRAIN_IDS, alpha=8.0):
        super().__init__()
        self.alpha = alpha
        self.body = nn.Sequential(nn.Linear(DIM_OBS, 96), nn.BatchNorm1d(96), nn.ReLU(),
                                  nn.Linear(96, 96), nn.BatchNorm1d(96), nn.ReLU(),
                                  nn.Linear(96, embedding_size))
        self.classifier = nn.Linear(embedding_size, num_classes)

    def forward(self, x):
        return F.normalize(self.body(x), dim=1) * self.alpha

    def forward_classifier(self, x):
        return self.classifier(self.forward(x))


class TripletMarginLoss(nn.Module):
    def __init__(self, margin):
        super().__init__()
        self.margin, self.pdist = margin, nn.PairwiseDistance(2)

    def forward(self, anchor, positive, negative):
        gap = self.pdist(anchor, positive) - self.pdist(anchor, negative)
        return torch.clamp(self.margin + gap, min=0).mean()


def draw_triplets(x, labels, n):
    a = np.random.randint(0, len(x), n)
    p, neg = np.empty(n, int), np.empty(n, int)
    for i, k in enumerate(a):
        p[i] = np.random.choice(np.where(labels == labels[k])[0])
        neg[i] = np.random.choice(np.where(labels != labels[k])[0])
    return a, p, neg


@torch.no_grad()
def verification_error(model, x, labels):
    model.eval()
    emb = model(x)
    model.train()
    dist = torch.cdist(emb, emb)
    iu = np.triu_indices(len(labels), 1)
    same = torch.from_numpy(labels[iu[0]] == labels[iu[1]])
    d = dist[iu[0], iu[1]]
    grid = torch.quantile(d[same], torch.linspace(0.02, 0.98, 60))
    frr = (d[same][None] > grid[:, None]).float().mean(1)
    far = (d[~same][None] <= grid[:, None]).float().mean(1)
    return torch.maximum(frr, far).min().item()


def main():
    margin, ce_weight = 4.0, 0.02
    x, labels = photos(np.random.randn(TRAIN_IDS, DIM_ID), 12)
    xt, lt = photos(np.random.randn(TEST_IDS, DIM_ID), 8)
    y = torch.from_numpy(labels)
    model = FaceModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
    criterion = nn.CrossEntropyLoss()
    pdist, triplet = nn.PairwiseDistance(2), TripletMarginLoss(margin)

    for step in range(1, 161):
        a, p, n = draw_triplets(x, labels, 96)
        out_a, out_p, out_n = model(x[a]), model(x[p]), model(x[n])
        gap = pdist(out_a, out_n) - pdist(out_a, out_p)
        hard_triplets = np.where((gap < margin).numpy().flatten())[0]
        if len(hard_triplets) == 0:
            continue
        out_selected_a = torch.from_numpy(out_a.detach().numpy()[hard_triplets])
        out_selected_p = torch.from_numpy(out_p.detach().numpy()[hard_triplets])
        out_selected_n = torch.from_numpy(out_n.detach().numpy()[hard_triplets])
        triplet_loss = triplet(out_selected_a, out_selected_p, out_selected_n)

        cls_a = model.forward_classifier(x[a[hard_triplets]])
        cls_p = model.forward_classifier(x[p[hard_triplets]])
        cross_entropy = criterion(torch.cat([cls_a, cls_p]),
                                  torch.cat([y[a[hard_triplets]], y[p[hard_triplets]]]))
        loss = ce_weight * cross_entropy + triplet_loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 40 == 0:
            print(f"step {step} hard {len(hard_triplets)} triplet {triplet_loss.item():.4f} "
                  f"ce {cross_entropy.item():.4f} eer {verification_error(model, xt, lt):.4f}")
    print("RESULT", verification_error(model, xt, lt))


if __name__ == "__main__":
    main()
