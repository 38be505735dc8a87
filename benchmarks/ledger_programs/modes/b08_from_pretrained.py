import os
import tempfile
import torch
import torch.nn as nn
import torch.nn.functional as F


class Encoder(nn.Module):
    def __init__(self, vocab=40, d=48, p=0.3, layers=2):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.drop = nn.Dropout(p)
        self.rnn = nn.ModuleList([nn.Linear(d, d) for _ in range(layers)])
        self.norm = nn.LayerNorm(d)

    def forward(self, ids):
        h = self.drop(self.emb(ids)).mean(1)
        for l in self.rnn:
            h = h + self.drop(torch.relu(l(h)))
        return self.norm(h)

    def save_pretrained(self, path):
        torch.save(self.state_dict(), os.path.join(path, "model.bin"))

    @classmethod
    def from_pretrained(cls, path):
        model = cls()
        model.load_state_dict(torch.load(os.path.join(path, "model.bin")))
        model.eval()
        return model


class Classifier(nn.Module):
    def __init__(self, encoder, n=2):
        super().__init__()
        self.encoder = encoder
        self.head = nn.Sequential(nn.Dropout(0.3), nn.Linear(48, n))

    def forward(self, ids, labels=None):
        logits = self.head(self.encoder(ids))
        loss = F.cross_entropy(logits, labels) if labels is not None else None
        return loss, logits


def main():
    torch.manual_seed(1)
    torch.set_num_threads(1)
    score = torch.randn(40)

    def data(n, noise=1.5):
        ids = torch.randint(0, 40, (n, 12))
        return ids, (score[ids].sum(1) + noise * torch.randn(n) > 0).long()

    path = tempfile.mkdtemp()
    Encoder().save_pretrained(path)
    model = Classifier(Encoder.from_pretrained(path))
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    ids, y = data(150)
    vids, vy = data(1500)
    for epoch in range(40):
        for i in torch.randperm(150).split(30):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss, _ = model(ids[i], y[i])
            loss.backward()
            opt.step()
            opt.zero_grad()
        if epoch % 10 == 0:
            print(epoch, loss.item())
    model.eval()
    with torch.no_grad():
        print("result:", model(vids, vy)[0].item())


main()
