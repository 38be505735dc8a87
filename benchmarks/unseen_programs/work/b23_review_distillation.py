"""Distil a review-rating teacher into a small student with fp16 and a hook-based trainer."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(27)

VOCAB, WORDS, STARS = 200, 16, 5


def reviews(n, polarity, gen):
    words = torch.randint(0, VOCAB, (n, WORDS), generator=gen)
    score = polarity[words].mean(1) * 3 + 0.3 * torch.randn(n, generator=gen)
    stars = torch.bucketize(score, torch.tensor([-1.0, -0.35, 0.35, 1.0]))
    return words, stars


class BagModel(nn.Module):
    def __init__(self, dim, width):
        super().__init__()
        self.emb = nn.EmbeddingBag(VOCAB, dim, mode="mean")
        nn.init.normal_(self.emb.weight, std=1.0)
        self.net = nn.Sequential(nn.Linear(dim, width), nn.ReLU(), nn.Linear(width, STARS))

    def forward(self, words):
        return self.net(self.emb(words))


class Hook:
    def after_backward(self, trainer):
        pass

    def after_step(self, trainer, step, loss):
        pass


class ClipGradients(Hook):
    def __init__(self, max_norm):
        self.max_norm = max_norm

    def after_backward(self, trainer):
        nn.utils.clip_grad_norm_(trainer.model.parameters(), self.max_norm)


class PrintLoss(Hook):
    def __init__(self, every):
        self.every = every

    def after_step(self, trainer, step, loss):
        if step % self.every == 0:
            print(f"step {step} loss {loss:.4f} scale {trainer.scaler.get_scale():.0f}")


class Trainer:
    def __init__(self, model, loss_fn, lr, hooks, half=False):
        self.model, self.loss_fn, self.hooks, self.half = model, loss_fn, hooks, half
        self.opt = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, enabled=half)

    def fit(self, data, steps, batch, gen):
        for step in range(steps):
            pick = torch.randint(0, len(data[0]), (batch,), generator=gen)
            with torch.autocast("cpu", dtype=torch.float16, enabled=self.half):
                logits = self.model(data[0][pick])
            loss = self.loss_fn(logits.float(), *[d[pick] for d in data])
            self.opt.zero_grad()
            self.scaler.scale(loss).backward()
            for hook in self.hooks:
                hook.after_backward(self)
            self.scaler.step(self.opt)
            self.scaler.update()
            for hook in self.hooks:
                hook.after_step(self, step, loss.item())


def hard_loss(logits, words, stars):
    return F.cross_entropy(logits, stars)


def distillation_loss(teacher, temperature=2.0, share=0.7):
    def loss(logits, words, stars):
        with torch.no_grad():
            soft = (teacher(words) / temperature).softmax(-1)
        kl = F.kl_div((logits / temperature).log_softmax(-1), soft, reduction="batchmean")
        return share * temperature ** 2 * kl + (1 - share) * F.cross_entropy(logits, stars)

    return loss


gen = torch.Generator().manual_seed(270)
polarity = torch.randn(VOCAB, generator=gen)
train, val = reviews(3000, polarity, gen), reviews(600, polarity, gen)
teacher = BagModel(48, 64)
Trainer(teacher, hard_loss, 0.3, [ClipGradients(2.0), PrintLoss(100)]).fit(train, 300, 64, gen)
student = BagModel(16, 24)
hooks = [ClipGradients(2.0), PrintLoss(75)]
Trainer(student, distillation_loss(teacher), 0.3, hooks, half=True).fit(train, 300, 64, gen)
with torch.no_grad():
    print(f"teacher val {F.cross_entropy(teacher(val[0]), val[1]).item():.4f}")
    print(f"RESULT {F.cross_entropy(student(val[0]), val[1]).item():.5f}")
