"""Train a spectral graph recommender on synthetic interactions; report the held-out BPR loss."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(6)
np.random.seed(6)
user_size, item_size = 220, 160
batch_size, learning_rate = 256, 0.5


def interactions():
    u, v = np.random.randn(user_size, 5), np.random.randn(item_size, 5)
    pop = np.random.randn(item_size) * 0.5
    prob = 1 / (1 + np.exp(-(1.3 * u @ v.T + pop - 2.6)))
    full = (np.random.rand(user_size, item_size) < prob).astype(np.float32)
    full[np.arange(user_size), np.random.randint(0, item_size, user_size)] = 1
    held = (np.random.rand(user_size, item_size) < 0.2) & (full > 0)
    train = full.copy()
    train[held] = 0
    train[train.sum(1) == 0, 0] = 1
    return torch.from_numpy(train), torch.from_numpy(full), np.argwhere(held)


def hypergraph_spectrum(rate, smooth_ratio=0.2):
    du, di = rate.sum(1).clamp(min=1), rate.sum(0).clamp(min=1)
    norm = du.rsqrt()[:, None] * rate * di.rsqrt()[None]
    out = []
    for adj in (norm @ norm.T, norm.T @ norm):
        values, vectors = torch.linalg.eigh(adj)
        k = int(len(values) * smooth_ratio)
        out.append((values[-k:], vectors[:, -k:]))
    return out


class GDE(nn.Module):
    def __init__(self, rate, beta=3.0, drop_out=0.1, latent_size=32, reg=1e-3):
        super().__init__()
        self.user_embed = nn.Embedding(user_size, latent_size)
        self.item_embed = nn.Embedding(item_size, latent_size)
        nn.init.xavier_normal_(self.user_embed.weight)
        nn.init.xavier_normal_(self.item_embed.weight)
        self.reg, self.m = reg, nn.Dropout(drop_out)
        (uval, uvec), (ival, ivec) = hypergraph_spectrum(rate)
        self.register_buffer("L_u", (uvec * torch.exp(beta * uval)) @ uvec.T)
        self.register_buffer("L_i", (ivec * torch.exp(beta * ival)) @ ivec.T)

    def forward(self, user, pos_item, nega_item, loss_type="bpr"):
        final_user = self.m(self.L_u[user]) @ self.user_embed.weight
        final_pos = self.m(self.L_i[pos_item]) @ self.item_embed.weight
        final_nega = self.m(self.L_i[nega_item]) @ self.item_embed.weight

        if loss_type == "adaptive":
            res_nega = (final_user * final_nega).sum(1)
            nega_weight = (1 - (1 - res_nega.sigmoid().clamp(max=0.99)).log10()).detach()
            out = ((final_user * final_pos).sum(1) - nega_weight * res_nega).sigmoid()
        else:
            out = (final_user * final_pos).sum(1) - (final_user * final_nega).sum(1)

        reg_term = self.reg * (final_user ** 2 + final_pos ** 2 + final_nega ** 2).sum()
        return (-torch.log(out).sum() + reg_term) / batch_size

    @torch.no_grad()
    def predict_matrix(self):
        return (self.L_u @ self.user_embed.weight) @ (self.L_i @ self.item_embed.weight).T


def held_out_bpr(model, full, held):
    score = model.predict_matrix()
    losses = []
    for u, i in held:
        negatives = score[u][full[u] == 0]
        losses.append(F.softplus(negatives - score[u, i]).mean())
    return torch.stack(losses).mean().item()


rate_matrix, full_matrix, held_out = interactions()
model = GDE(rate_matrix)
optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
steps = int(rate_matrix.sum().item()) // batch_size

for i in range(14):
    total_loss = 0.0
    model.train()
    for j in range(steps):
        u = torch.randint(0, user_size, (batch_size,))
        p = torch.multinomial(rate_matrix[u], 1, True).squeeze(1)
        nega = torch.multinomial(1 - full_matrix[u], 1, True).squeeze(1)
        loss = model(u, p, nega)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total_loss += loss.item()
    model.eval()
    if (i + 1) % 2 == 0:
        print("epoch %d training loss:%f held-out:%f" % (
            i, total_loss / steps, held_out_bpr(model, full_matrix, held_out)))

print("RESULT", held_out_bpr(model, full_matrix, held_out))
