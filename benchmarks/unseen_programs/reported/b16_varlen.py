"""Variable-length sequence classification with a packed GRU."""
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader

torch.set_num_threads(1)
VOCAB, PAD = 12, 0


def make_sequences(n, seed):
    """Label: residue of the first token; everything after it is distraction."""
    g = torch.Generator().manual_seed(seed)
    data = []
    for _ in range(n):
        length = int(torch.randint(4, 19, (1,), generator=g))
        tokens = torch.randint(1, VOCAB, (length,), generator=g)
        data.append((tokens, int(tokens[0] % 3)))
    return data


def collate(batch):
    seqs, labels = zip(*batch)
    lengths = torch.tensor([len(s) for s in seqs])
    return pad_sequence(seqs, batch_first=True, padding_value=PAD), lengths, torch.tensor(labels)


class GRUClassifier(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, dim, padding_idx=PAD)
        self.gru = nn.GRU(dim, dim, batch_first=True)
        self.drop = nn.Dropout(0.1)
        self.fc = nn.Linear(dim, 3)

    def forward(self, tokens, lengths):
        packed = pack_padded_sequence(self.emb(tokens), lengths, batch_first=True, enforce_sorted=False)
        output, _ = pad_packed_sequence(self.gru(packed)[0], batch_first=True)
        return self.fc(self.drop(output[:, -1]))


@torch.no_grad()
def error(model, loader):
    model.eval()
    wrong, n = 0, 0
    for tokens, lengths, y in loader:
        wrong += (model(tokens, lengths).argmax(1) != y).sum().item()
        n += len(y)
    return wrong / n


def main():
    torch.manual_seed(14)
    train = DataLoader(make_sequences(1600, 1), batch_size=40, shuffle=True, collate_fn=collate)
    val = DataLoader(make_sequences(400, 2), batch_size=40, collate_fn=collate)
    model = GRUClassifier()
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    crit = nn.CrossEntropyLoss()
    for epoch in range(8):
        model.train()
        for tokens, lengths, y in train:
            loss = crit(model(tokens, lengths), y)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
        print(f"epoch {epoch} loss {loss.item():.3f} err {error(model, val):.3f}")
    print(f"RESULT {error(model, val):.4f}")


if __name__ == "__main__":
    main()
