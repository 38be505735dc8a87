"""Route support tickets to one of six queues with a small transformer encoder."""
import argparse
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=2e-5)
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--weight-decay", type=float, default=0.01)
args = parser.parse_args()

torch.set_num_threads(1)
torch.manual_seed(42)

VOCAB, LENGTH, QUEUES = 500, 16, 6


class TicketRouter(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.word = nn.Embedding(VOCAB, d)
        self.pos = nn.Parameter(torch.randn(1, LENGTH, d) * 0.02)
        layer = nn.TransformerEncoderLayer(d, 4, 96, dropout=0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.classify = nn.Linear(d, QUEUES)

    def forward(self, tokens):
        h = self.encoder(self.word(tokens) + self.pos)
        return self.classify(h.mean(1))


def make_tickets(n):
    queue = torch.randint(0, QUEUES, (n,))
    common = torch.randint(100, VOCAB, (n, LENGTH))
    jargon = queue[:, None] * 16 + torch.randint(0, 16, (n, LENGTH))
    use = torch.rand(n, LENGTH) < 0.35
    return torch.where(use, jargon, common), queue


x, y = make_tickets(1600)
x_test, y_test = make_tickets(500)
model = TicketRouter()
decay = [p for p in model.parameters() if p.ndim > 1]
no_decay = [p for p in model.parameters() if p.ndim <= 1]
optimizer = torch.optim.AdamW([
    {"params": decay, "weight_decay": args.weight_decay},
    {"params": no_decay, "weight_decay": 0.0}], lr=args.lr)
loss_fn = nn.CrossEntropyLoss()

for epoch in range(args.epochs):
    model.train()
    order = torch.randperm(len(x))
    losses = []
    for idx in order.split(args.batch_size):
        loss = loss_fn(model(x[idx]), y[idx])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    print(f"[{epoch + 1}/{args.epochs}] train loss {sum(losses) / len(losses):.4f}")

model.eval()
with torch.no_grad():
    logits = model(x_test)
    print("accuracy", (logits.argmax(1) == y_test).float().mean().item())
    print("RESULT", loss_fn(logits, y_test).item())
