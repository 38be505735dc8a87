"""Trains a small acoustic model with CTC on synthetic utterances of sub-word tokens."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(71)

TOKENS, BLANK, MELS = 20, 0, 16


class Cut:
    def __init__(self, features, tokens):
        self.features, self.tokens = features, tokens
        self.num_frames = len(features)


def record(n, voices):
    """Speakers of different pace; quick ones say a token within a few frames."""
    cuts = []
    for _ in range(n):
        length = int(torch.randint(3, 9, (1,)))
        tokens = torch.randint(1, TOKENS, (length,))
        tokens[1:] = torch.where(torch.rand(length - 1) < 0.15, tokens[:-1], tokens[1:])
        pace = int(torch.randint(5, 12, (1,)))
        frames = torch.cat([voices[t].expand(pace + int(torch.randint(-1, 3, (1,))), -1)
                            for t in tokens])
        cuts.append(Cut(frames + 0.5 * torch.randn_like(frames), tokens))
    return cuts


def subsampled(num_frames):
    return ((num_frames - 3) // 2 + 1 - 3) // 2 + 1


class Zipper(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.conv1 = nn.Conv1d(MELS, dim, 3, stride=2)
        self.conv2 = nn.Conv1d(dim, dim, 3, stride=2)
        self.rnn = nn.GRU(dim, dim // 2, bidirectional=True, batch_first=True)
        self.norm = nn.LayerNorm(dim)
        self.ctc_output = nn.Linear(dim, TOKENS)

    def forward(self, feats, lens):
        h = F.gelu(self.conv2(F.gelu(self.conv1(feats.transpose(1, 2))))).transpose(1, 2)
        h = h + self.rnn(h)[0]
        return self.ctc_output(self.norm(h)).log_softmax(-1), subsampled(lens)


def collate(cuts):
    lens = torch.tensor([c.num_frames for c in cuts])
    feats = nn.utils.rnn.pad_sequence([c.features for c in cuts], batch_first=True)
    targets = torch.cat([c.tokens for c in cuts])
    return feats, lens, targets, torch.tensor([len(c.tokens) for c in cuts])


def remove_short_utt(c):
    T = subsampled(c.num_frames)
    num_tokens = len(c.tokens)
    if T < num_tokens:
        print(f"Exclude cut: {c.num_frames} frames, {T} after subsampling, {num_tokens} tokens")
        return False
    return True


def compute_loss(model, batch):
    feats, lens, targets, target_lens = batch
    log_probs, out_lens = model(feats, lens)
    loss = F.ctc_loss(log_probs.transpose(0, 1), targets, out_lens, target_lens, blank=BLANK,
                      reduction="sum")
    return loss / target_lens.sum()


def train_one_epoch(model, cuts, optimizer, scheduler, epoch):
    model.train()
    order = torch.randperm(len(cuts)).tolist()
    tot_loss = 0.0
    for i, start in enumerate(range(0, len(order), 24)):
        loss = compute_loss(model, collate([cuts[j] for j in order[start:start + 24]]))
        optimizer.zero_grad()
        loss.backward()
        grad_norm = nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        scheduler.step()
        tot_loss = loss.item() if i == 0 else 0.9 * tot_loss + 0.1 * loss.item()
        if i % 10 == 0:
            print(f"Epoch {epoch}, batch {i}, loss[{loss.item():.4f}], tot_loss[{tot_loss:.4f}], "
                  f"grad_norm {float(grad_norm):.3f}")


voices = 1.2 * torch.randn(TOKENS, MELS)
train_cuts = [c for c in record(700, voices) if remove_short_utt(c)]
valid_cuts = [c for c in record(120, voices) if subsampled(c.num_frames) >= 2 * len(c.tokens)]
model = Zipper()
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, 4 * ((len(train_cuts) + 23) // 24))
for epoch in range(1, 5):
    train_one_epoch(model, train_cuts, optimizer, scheduler, epoch)
    model.eval()
    with torch.no_grad():
        valid_loss = compute_loss(model, collate(valid_cuts)).item()
    print(f"Epoch {epoch}, validation loss {valid_loss:.4f}")
print("RESULT", round(valid_loss, 5))
