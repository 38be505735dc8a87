"""Predict star ratings from product reviews of uneven length with a packed LSTM."""
import torch
torch.set_num_threads(1)
torch.manual_seed(200)
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence

VOCAB = 200


def reviews(n, seed):
    g = torch.Generator().manual_seed(123)
    polarity = torch.randn(VOCAB, generator=g)
    g = torch.Generator().manual_seed(seed)
    texts, stars = [], []
    for _ in range(n):
        length = int(torch.randint(4, 24, (1,), generator=g))
        lean = torch.randn(1, generator=g) * 0.8
        words = torch.multinomial(torch.softmax(lean * polarity, 0), length, True, generator=g)
        texts.append(words)
        stars.append(2.5 + 1.2 * lean.item() + 0.1 * torch.randn(1, generator=g).item())
    return texts, torch.tensor(stars)


class ReviewEncoder(nn.Module):
    def __init__(self, dim=24, width=32):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.lstm = nn.LSTM(dim, width, batch_first=True)

    def forward(self, texts):
        lengths = torch.tensor([len(t) for t in texts])
        lengths, order = lengths.sort(descending=True)
        padded = pad_sequence([texts[i] for i in order.tolist()], batch_first=True)
        packed = pack_padded_sequence(self.embed(padded), lengths, batch_first=True)
        _, (state, _) = self.lstm(packed)
        return state[-1]


class RatingModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = ReviewEncoder()
        self.rate = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, texts):
        return self.rate(self.encoder(texts)).squeeze(1) + 2.5


def stream(texts, stars, size):
    while True:
        for rows in torch.randperm(len(texts)).split(size):
            yield [texts[i] for i in rows.tolist()], stars[rows]


train_texts, train_stars = reviews(2400, 1)
val_texts, val_stars = reviews(400, 2)
model = RatingModel()
opt = torch.optim.Adam(model.parameters(), lr=4e-3)


@torch.no_grad()
def validate():
    return (model(val_texts) - val_stars).square().mean().item()


for step, (texts, stars) in enumerate(stream(train_texts, train_stars, 48)):
    if step == 250:
        break
    loss = (model(texts) - stars).square().mean()
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    if step % 50 == 0:
        print(f"step {step} loss {loss.item():.4f} val {validate():.4f}")

print("RESULT", validate())
