"""Trains an entity tagger with an encoder, a visual prefix and a conditional random field."""
import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(67)

TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
VOCAB, LENGTH, IMG = 200, 12, 8


def tweets(n):
    """Word classes carry weak evidence; the image tells which entity kind is likely."""
    kind = torch.randint(0, 2, (n,))
    image = torch.randn(n, IMG)
    image[:, 0] += 2.5 * (kind * 2 - 1)
    ids = torch.randint(0, 120, (n, LENGTH))
    tags = torch.zeros(n, LENGTH, dtype=torch.long)
    for i in range(n):
        at = int(torch.randint(0, LENGTH - 3, (1,)))
        span = int(torch.randint(1, 4, (1,)))
        base = 1 + 2 * int(kind[i])
        tags[i, at], tags[i, at + 1:at + span] = base, base + 1
        ids[i, at:at + span] = torch.randint(110, VOCAB, (span,))
    return ids, image, tags


class CRF(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.start, self.end = nn.Parameter(torch.empty(n)), nn.Parameter(torch.empty(n))
        self.transitions = nn.Parameter(torch.empty(n, n))
        for p in self.parameters():
            nn.init.uniform_(p, -0.1, 0.1)

    def forward(self, emissions, tags):
        score = self.start[tags[:, 0]] + self.end[tags[:, -1]]
        score = score + emissions.gather(2, tags.unsqueeze(2)).sum((1, 2))
        score = score + self.transitions[tags[:, :-1], tags[:, 1:]].sum(1)
        alpha = self.start + emissions[:, 0]
        for t in range(1, emissions.shape[1]):
            alpha = torch.logsumexp(alpha.unsqueeze(2) + self.transitions, 1) + emissions[:, t]
        return (torch.logsumexp(alpha + self.end, 1) - score).mean()


class HVPNetNER(nn.Module):
    def __init__(self, dim=48, prefix=2):
        super().__init__()
        self.bert = nn.ModuleDict({
            "embeddings": nn.Embedding(VOCAB, dim), "positions": nn.Embedding(LENGTH + prefix, dim),
            "layer": nn.TransformerEncoderLayer(dim, 4, 96, dropout=0.1, batch_first=True)})
        self.prefix, self.dim = prefix, dim
        self.encoder_conv = nn.Sequential(nn.Linear(IMG, 64), nn.Tanh(),
                                          nn.Linear(64, prefix * dim))
        self.gates = nn.Linear(dim, 1)
        self.fc = nn.Linear(dim, len(TAGS))
        self.crf = CRF(len(TAGS))

    def forward(self, ids, image, tags):
        words = self.bert["embeddings"](ids)
        visual = self.encoder_conv(image).view(len(ids), self.prefix, self.dim)
        visual = visual * torch.sigmoid(self.gates(visual))
        h = torch.cat([visual, words], 1) + self.bert["positions"].weight
        h = self.bert["layer"](h)[:, self.prefix:]
        return self.crf(self.fc(h), tags)


class NERTrainer:
    def __init__(self, model, train, dev, lr=1e-3, epochs=4, batch=20):
        self.model, self.train_data, self.dev_data = model, train, dev
        self.lr, self.epochs, self.batch = lr, epochs, batch
        self.multimodal_before_train()

    def multimodal_before_train(self):
        parameters = []
        params = {"lr": self.lr, "weight_decay": 1e-2, "params": []}
        for name, param in self.model.named_parameters():
            if "bert" in name:
                params["params"].append(param)
        parameters.append(params)

        params = {"lr": self.lr, "weight_decay": 1e-2, "params": []}
        for name, param in self.model.named_parameters():
            if "encoder_conv" in name or name.startswith("gates"):
                params["params"].append(param)
        parameters.append(params)

        params = {"lr": 2e-2, "weight_decay": 1e-2, "params": []}
        for name, param in self.model.named_parameters():
            if "crf" in name or name.startswith("fc"):
                params["params"].append(param)
        self.optimizer = torch.optim.AdamW(parameters)
        total = self.epochs * (len(self.train_data[0]) // self.batch)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda s: min(1.0, (s + 1) / (0.05 * total)) * max(0.0, 1 - s / total))

    def train(self):
        for epoch in range(1, self.epochs + 1):
            self.model.train()
            avg_loss, batches = 0.0, torch.randperm(len(self.train_data[0])).split(self.batch)
            for idx in batches:
                loss = self.model(*(t[idx] for t in self.train_data))
                avg_loss += loss.item() / len(batches)
                loss.backward()
                self.optimizer.step()
                self.scheduler.step()
                self.optimizer.zero_grad()
            dev = self.evaluate()
            print(f"Epoch {epoch}/{self.epochs} loss:{avg_loss:.5f} dev loss:{dev:.5f}")
        return dev

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        return self.model(*self.dev_data).item()


print("RESULT", round(NERTrainer(HVPNetNER(), tweets(1000), tweets(300)).train(), 5))
