"""Train a small FastSpeech-style encoder from phonemes to mel frames; report masked mel MSE."""
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(44)
N_PHON, N_MEL, PAD_IDX = 12, 8, 0
VOICE = torch.randn(N_PHON + 1, N_MEL, generator=torch.Generator().manual_seed(1))


def utterances(n, gen):
    out = []
    for _ in range(n):
        length = int(torch.randint(8, 17, (1,), generator=gen))
        tokens = torch.randint(1, N_PHON + 1, (length,), generator=gen)
        prev = F.pad(tokens[:-1], (1, 0))
        pos = torch.arange(length).float()
        mel = 0.7 * VOICE[tokens] + 0.5 * VOICE[prev].roll(1, -1)
        mel = mel + 0.8 * (torch.cos(pos * math.pi / 8))[:, None]
        out.append((tokens, mel + 0.1 * torch.randn(length, N_MEL, generator=gen)))
    return out


def text_mel_collate(batch):
    longest = max(len(t) for t, _ in batch)
    tokens = torch.full((len(batch), longest), PAD_IDX)
    mels = torch.zeros(len(batch), longest, N_MEL)
    for i, (t, m) in enumerate(batch):
        tokens[i, :len(t)], mels[i, :len(m)] = t, m
    return tokens, mels, torch.tensor([len(t) for t, _ in batch])


def get_key_padding_mask(tokens, pad_idx):
    return tokens == pad_idx


class EncoderPreNet(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.token_embedding = nn.Embedding(N_PHON + 1, d, padding_idx=PAD_IDX)

    def forward(self, x):
        return self.token_embedding(x)


class PositionalEmbedding(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.register_buffer("inv_freq", 1 / 10000 ** (torch.arange(0.0, d, 2.0) / d))

    def forward(self, seq_len, mask):
        ang = torch.arange(seq_len).float()[:, None] * self.inv_freq
        emb = torch.cat([ang.sin(), ang.cos()], dim=1)
        return emb[None] * mask


class FastSpeech2Encoder(nn.Module):
    def __init__(self, d=32, heads=4, layers=2):
        super().__init__()
        self.encPreNet = EncoderPreNet(d)
        self.sinusoidal_positional_embed_encoder = PositionalEmbedding(d)
        layer = nn.TransformerEncoderLayer(d, heads, 64, dropout=0.0, batch_first=True,
                                           norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.mel_linear = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, N_MEL))

    def forward(self, tokens):
        token_feats = self.encPreNet(tokens)
        srcmask = get_key_padding_mask(tokens, pad_idx=PAD_IDX)
        srcmask_inverted = (~srcmask).unsqueeze(-1)
        pos = self.sinusoidal_positional_embed_encoder(token_feats.shape[1], srcmask[..., None])
        token_feats = (token_feats + pos) * srcmask_inverted
        out = self.encoder(token_feats, src_key_padding_mask=srcmask)
        return self.mel_linear(out * srcmask_inverted)


def mel_loss(pred, target, lengths):
    mask = (torch.arange(pred.shape[1])[None] < lengths[:, None]).float()[..., None]
    return ((pred - target) ** 2 * mask).sum() / (mask.sum() * N_MEL)


@torch.no_grad()
def evaluate(model, batch):
    model.eval()
    tokens, mels, lengths = batch
    loss = mel_loss(model(tokens), mels, lengths).item()
    model.train()
    return loss


def noam(step, warmup=60):
    return min((step + 1) / warmup, math.sqrt(warmup / (step + 1)))


def main():
    gen = torch.Generator().manual_seed(7)
    train = utterances(400, gen)
    val = text_mel_collate(utterances(100, gen))
    model = FastSpeech2Encoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, betas=(0.9, 0.98), eps=1e-9)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, noam)
    for step in range(1, 261):
        pick = torch.randint(0, len(train), (16,)).tolist()
        tokens, mels, lengths = text_mel_collate([train[i] for i in pick])
        loss = mel_loss(model(tokens), mels, lengths)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        if step % 40 == 0:
            print(f"step {step} mel_loss {loss.item():.4f} valid {evaluate(model, val):.4f}")
    print("RESULT", evaluate(model, val))


if __name__ == "__main__":
    main()
