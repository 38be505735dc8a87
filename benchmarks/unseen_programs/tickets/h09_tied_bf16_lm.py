"""Train a bfloat16 recurrent language model with tied embeddings and carried state."""
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(29)
VOCAB, BATCH, BPTT = 24, 16, 20


def corpus(n, seed):
    g = torch.Generator().manual_seed(seed)
    table = torch.softmax(3 * torch.randn(VOCAB, VOCAB,
                                          generator=torch.Generator().manual_seed(1)), 1)
    seq, state = [0], 0
    for _ in range(n - 1):
        row = table[(seq[-1] + 5 * state) % VOCAB]
        seq.append(int(torch.multinomial(row, 1, generator=g)))
        state = (state + seq[-1]) % 3
    return torch.tensor(seq)


def batchify(data):
    n = len(data) // BATCH
    return data[:n * BATCH].view(BATCH, n).t().contiguous()


class RNNModel(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.encoder = nn.Embedding(VOCAB, d)
        self.rnn = nn.GRU(d, d)
        self.decoder = nn.Linear(d, VOCAB)
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        self.decoder.weight = self.encoder.weight

    def forward(self, tokens, hidden):
        out, hidden = self.rnn(self.encoder(tokens), hidden)
        return self.decoder(out), hidden


def repackage(h):
    return None if h is None else h.detach()


@torch.no_grad()
def evaluate(model, data):
    model.eval()
    hidden, total = None, 0.0
    for i in range(0, len(data) - 1, BPTT):
        n = min(BPTT, len(data) - 1 - i)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out, hidden = model(data[i:i + n], hidden)
        loss = F.cross_entropy(out.float().flatten(0, 1), data[i + 1:i + 1 + n].flatten())
        total += loss.item() * n
    model.train()
    return total / (len(data) - 1)


def main(epochs=8):
    train, val = batchify(corpus(9000, 5)), batchify(corpus(2000, 6))
    model, lr, best = RNNModel(), 8.0, float("inf")
    for epoch in range(epochs):
        hidden = None
        for i in range(0, len(train) - 1 - BPTT, BPTT):
            hidden = repackage(hidden)
            model.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                out, hidden = model(train[i:i + BPTT], hidden)
            target = train[i + 1:i + 1 + BPTT].flatten()
            loss = F.cross_entropy(out.float().flatten(0, 1), target)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.25)
            with torch.no_grad():
                for p in model.parameters():
                    p.add_(p.grad, alpha=-lr)
        val_loss = evaluate(model, val)
        if val_loss < best:
            best = val_loss
        else:
            lr /= 4.0
        print(f"epoch {epoch} lr {lr} valid_loss {val_loss:.4f} ppl {math.exp(val_loss):.2f}")
    print("RESULT", best)


if __name__ == "__main__":
    main()
