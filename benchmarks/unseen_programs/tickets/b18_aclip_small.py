"""Pretrain a tiny image-text model with an auxiliary contrastive loss; report k-NN error."""
import copy
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(61)
COARSE, FINE, DIM = 4, 5, 48
PROTO = torch.randn(COARSE, 1, DIM) + 0.9 * torch.randn(COARSE, FINE, DIM)
VIEW = torch.randn(12, DIM)


def corpus(n, gen):
    c = torch.randint(0, COARSE, (n,), generator=gen)
    f = torch.randint(0, FINE, (n,), generator=gen)
    image = PROTO[c, f] + 0.45 * torch.randn(n, DIM, generator=gen)
    text = torch.stack([c * 3 + torch.randint(0, 3, (n,), generator=gen) for _ in range(4)], 1)
    return image, text, c * FINE + f


def augment(image):
    style = 0.7 * torch.randn(len(image), 12) @ VIEW
    keep = (torch.rand_like(image) > 0.15).float()
    return (image + style) * keep + 0.1 * torch.randn_like(image)


class Encoder(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(DIM, width), nn.BatchNorm1d(width), nn.ReLU(),
                                 nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU())

    def forward(self, x):
        return self.net(x)


class ACLIP(nn.Module):
    def __init__(self, width=64, embed=24):
        super().__init__()
        self.visual, self.image_proj = Encoder(width), nn.Linear(width, embed)
        self.image_mlp = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, embed))
        self.token, self.text_proj = nn.Embedding(COARSE * 3, 32), nn.Linear(32, embed)
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.1)))

    def forward(self, im1, im2, text):
        feats = self.visual(torch.cat([im1, im2]))
        return dict(image_embed=self.image_proj(feats), image_ssl_embed=self.image_mlp(feats),
                    text_embed=self.text_proj(self.token(text).mean(1)),
                    logit_scale=self.logit_scale.exp())


class SimCLRLoss(nn.Module):
    def __init__(self, temperature=0.2):
        super().__init__()
        self.tau = temperature

    def forward(self, outputs):
        q_a = F.normalize(outputs["aug1_embed"], dim=-1)
        q_b = F.normalize(outputs["aug2_embed"], dim=-1)
        n = len(q_a)
        labels, mask = torch.arange(n), torch.eye(n) * 1e9
        aa, bb = q_a @ q_a.T / self.tau - mask, q_b @ q_b.T / self.tau - mask
        ab = q_a @ q_b.T / self.tau
        loss_a = F.cross_entropy(torch.cat([ab, aa], 1), labels)
        loss_b = F.cross_entropy(torch.cat([ab.T, bb], 1), labels)
        return (loss_a + loss_b) / 2


class ACLIPLoss(nn.Module):
    def __init__(self, ssl_scale=1.0):
        super().__init__()
        self.simclr_loss, self.ssl_scale = SimCLRLoss(), ssl_scale

    def forward(self, outputs):
        bs = outputs["text_embed"].shape[0]
        image_ssl_embed = outputs["image_ssl_embed"]
        inputs = {}
        inputs["aug1_embed"] = image_ssl_embed[:bs]
        inputs["aug2_embed"] = image_ssl_embed[:bs]
        ssl_loss = self.simclr_loss(inputs)

        text = F.normalize(outputs["text_embed"], dim=-1)
        labels, contra = torch.arange(bs), 0.0
        for image in outputs["image_embed"].split(bs):
            logits = outputs["logit_scale"] * F.normalize(image, dim=-1) @ text.T
            contra = contra + (F.cross_entropy(logits, labels)
                               + F.cross_entropy(logits.T, labels)) / 4
        return dict(loss=0.3 * contra + self.ssl_scale * ssl_loss,
                    contra=contra.item(), simclr=ssl_loss.item())


@torch.no_grad()
def knn_error(model, bank, query, k=9):
    model = copy.deepcopy(model).eval()
    fb, fq = [F.normalize(model.visual(d[0]), dim=-1) for d in (bank, query)]
    near = (fq @ fb.T).topk(k, 1).indices
    votes = F.one_hot(bank[2][near], COARSE * FINE).sum(1).argmax(1)
    return (votes != query[2]).float().mean().item()


def main():
    gen = torch.Generator().manual_seed(5)
    train, query = corpus(1500, gen), corpus(400, gen)
    query = (augment(query[0]), query[1], query[2])
    model, criterion = ACLIP(), ACLIPLoss()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.02)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 3e-3, total_steps=240, pct_start=0.1)
    for step in range(1, 241):
        idx = torch.randint(0, len(train[0]), (96,))
        image = train[0][idx]
        out = criterion(model(augment(image), augment(image), train[1][idx]))
        opt.zero_grad()
        out["loss"].backward()
        opt.step()
        sched.step()
        if step % 40 == 0:
            print(f"step {step} contra {out['contra']:.4f} simclr {out['simclr']:.4f} "
                  f"knn_error {knn_error(model, train, query):.4f}")
    print("RESULT", knn_error(model, train, query))


if __name__ == "__main__":
    main()
