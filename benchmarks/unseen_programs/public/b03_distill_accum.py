"""Distils a wide text classifier into a narrow one with gradient accumulation."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(5)

CONFIG = {
    "vocab": 300, "classes": 8, "seq_len": 20,
    "training": {"per_device_batch": 8, "gradient_accumulation_steps": 16, "max_steps": 90,
                 "lr": 0.15, "warmup": 10, "log_every": 15},
    "distillation": {"temperature": 2.0, "alpha": 0.7},
}


class BagEncoder(nn.Module):
    def __init__(self, vocab, dim, classes, depth):
        super().__init__()
        self.emb = nn.EmbeddingBag(vocab, dim, mode="mean")
        layers = []
        for _ in range(depth):
            layers += [nn.Linear(dim, dim), nn.LayerNorm(dim), nn.GELU()]
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(dim, classes)

    def forward(self, ids):
        return self.head(self.body(self.emb(ids)))


def topic_documents(n, cfg, topics):
    labels = torch.randint(0, cfg["classes"], (n,))
    mix = 0.45 * topics[labels] + 0.55 / cfg["vocab"]
    ids = torch.multinomial(mix, cfg["seq_len"], replacement=True)
    return ids, labels


def fit_teacher(model, ids, labels, steps=120):
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(steps):
        idx = torch.randint(0, len(ids), (64,))
        loss = F.cross_entropy(model(ids[idx]), labels[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
    return model.eval().requires_grad_(False)


class DistillTrainer:
    def __init__(self, student, teacher, data, val, cfg):
        self.student, self.teacher, self.data, self.val = student, teacher, data, val
        self.train_cfg, self.kd = cfg["training"], cfg["distillation"]
        self.opt = torch.optim.SGD(student.parameters(), lr=self.train_cfg["lr"], momentum=0.9)
        warm, total = self.train_cfg["warmup"], self.train_cfg["max_steps"]
        self.sched = torch.optim.lr_scheduler.LambdaLR(
            self.opt, lambda s: min(1.0, (s + 1) / warm) * max(0.0, 1 - s / total))
        self.history = []

    def batches(self):
        ids, labels = self.data
        while True:
            for idx in torch.randperm(len(ids)).split(self.train_cfg["per_device_batch"]):
                yield ids[idx], labels[idx]

    def compute_loss(self, ids, labels):
        t = self.kd["temperature"]
        logits = self.student(ids)
        with torch.no_grad():
            soft = F.softmax(self.teacher(ids) / t, dim=-1)
        kd = F.kl_div(F.log_softmax(logits / t, dim=-1), soft, reduction="batchmean") * t * t
        return self.kd["alpha"] * kd + (1 - self.kd["alpha"]) * F.cross_entropy(logits, labels)

    def training_step(self, stream):
        accumulated = 0.0
        for _ in range(self.train_cfg["gradient_accumulation_steps"]):
            loss = self.compute_loss(*next(stream))
            loss.backward()
            accumulated += loss.item()
        self.opt.step()
        self.sched.step()
        self.opt.zero_grad(set_to_none=True)
        return accumulated

    @torch.no_grad()
    def evaluate(self):
        self.student.eval()
        loss = F.cross_entropy(self.student(self.val[0]), self.val[1]).item()
        self.student.train()
        return loss

    def train(self):
        stream = self.batches()
        for step in range(1, self.train_cfg["max_steps"] + 1):
            self.history.append(self.training_step(stream))
            if step % self.train_cfg["log_every"] == 0:
                print({"step": step, "loss": round(self.history[-1], 4),
                       "eval_loss": round(self.evaluate(), 4),
                       "lr": round(self.sched.get_last_lr()[0], 5)})
        return self.evaluate()


topics = torch.softmax(2.0 * torch.randn(CONFIG["classes"], CONFIG["vocab"]), dim=-1)
train, val = topic_documents(3000, CONFIG, topics), topic_documents(800, CONFIG, topics)
teacher = fit_teacher(BagEncoder(CONFIG["vocab"], 96, CONFIG["classes"], 2), *train)
student = BagEncoder(CONFIG["vocab"], 32, CONFIG["classes"], 2)
result = DistillTrainer(student, teacher, train, val, CONFIG).train()
print("RESULT", round(result, 5))
