"""Trains a late-interaction passage ranker and continues it from its saved checkpoint."""
import os
import tempfile
from types import SimpleNamespace

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(13)

VOCAB, QUERY_LEN, DOC_LEN, TOPICS = 200, 6, 18, 25
MAPPING = torch.randperm(VOCAB)


def triples(n, topic_words):
    """Query, relevant passage and irrelevant passage as token ids; queries use other words."""
    pos = torch.randint(0, TOPICS, (n,))
    neg = (pos + torch.randint(1, TOPICS, (n,))) % TOPICS

    def draw(topic, length, noise):
        place = torch.randint(0, topic_words.shape[1], (len(topic), length))
        words = topic_words[topic].gather(1, place)
        other = torch.randint(0, VOCAB, words.shape)
        return torch.where(torch.rand(words.shape) < noise, other, words)

    return MAPPING[draw(pos, QUERY_LEN, 0.3)], draw(pos, DOC_LEN, 0.6), draw(neg, DOC_LEN, 0.6)


class ColBERT(nn.Module):
    def __init__(self, dim=48, out=24):
        super().__init__()
        self.bert = nn.Embedding(VOCAB, dim)
        nn.init.normal_(self.bert.weight, std=0.1)
        self.mixer = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, dim), nn.GELU())
        self.query_linear = nn.Linear(dim, out, bias=False)
        self.doc_linear = nn.Linear(dim, out, bias=False)

    def encode(self, ids, linear):
        h = self.bert(ids)
        return F.normalize(linear(h + self.mixer(h)), dim=-1)

    def forward(self, q, d):
        sim = self.encode(q, self.query_linear) @ self.encode(d, self.doc_linear).transpose(1, 2)
        return sim.max(-1).values.sum(-1)


def save_checkpoint(path, batch_idx, model, optimizer):
    torch.save({"batch": batch_idx, "model_state_dict": model.state_dict(),
                "optimizer_state_dict": optimizer.state_dict()}, path)


def load_checkpoint(path, model, optimizer=None):
    checkpoint = torch.load(path)
    model.load_state_dict(checkpoint["model_state_dict"])
    if optimizer is not None:
        optimizer.load_state_dict(checkpoint["optimizer_state_dict"])
    return checkpoint


@torch.no_grad()
def ranking_loss(model, batch):
    q, pos, neg = batch
    scores = torch.stack([model(q, pos), model(q, neg)], 1)
    return F.cross_entropy(4 * scores, torch.zeros(len(q), dtype=torch.long)).item()


def train(args, data, val):
    colbert = ColBERT()
    start = 0
    optimizer = torch.optim.AdamW(colbert.parameters(), lr=args.lr, eps=1e-8)
    if args.resume:
        checkpoint_model = ColBERT()
        checkpoint = load_checkpoint(args.checkpoint, checkpoint_model)
        start = checkpoint["batch"]
        print(f"[resume] {args.checkpoint and os.path.basename(args.checkpoint)} at batch {start}")
    colbert.train()
    avg = None
    for batch_idx in range(start, args.maxsteps):
        idx = torch.randint(0, len(data[0]), (args.bsize,))
        q, pos, neg = (t[idx] for t in data)
        scores = torch.stack([colbert(q, pos), colbert(q, neg)], 1)
        loss = F.cross_entropy(4 * scores, torch.zeros(args.bsize, dtype=torch.long))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(colbert.parameters(), 2.0)
        optimizer.step()
        avg = loss.item() if avg is None else 0.95 * avg + 0.05 * loss.item()
        if (batch_idx + 1) % 40 == 0:
            print(batch_idx + 1, f"avg {avg:.4f}", f"val {ranking_loss(colbert, val):.4f}")
    save_checkpoint(args.checkpoint, args.maxsteps, colbert, optimizer)
    return ranking_loss(colbert, val)


topic_words = torch.randint(0, VOCAB, (TOPICS, 30))
data, val = triples(20000, topic_words), triples(1000, topic_words)
with tempfile.TemporaryDirectory() as folder:
    run = SimpleNamespace(lr=4e-3, bsize=48, maxsteps=200, resume=False,
                          checkpoint=os.path.join(folder, "colbert-200.dnn"))
    train(run, data, val)
    run.resume, run.maxsteps, run.lr = True, 260, 1e-3
    result = train(run, data, val)
print("RESULT", round(result, 5))
