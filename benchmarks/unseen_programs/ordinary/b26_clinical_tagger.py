"""Assertion tagging in clinical notes: each finding is tagged, a cue anywhere in the note negates all of them."""
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

torch.set_num_threads(1)
torch.manual_seed(89)

PAD, CUES, WORDS, TAGS = 0, 5, 120, 4


def notes(n):
    seqs, tags = [], []
    for _ in range(n):
        length = int(torch.randint(8, 20, (1,)))
        tokens = torch.randint(CUES + 1, WORDS, (length,))
        tag = tokens % 3
        if torch.rand(1) < 0.5:
            tokens[torch.randint(0, length, (2,))] = int(torch.randint(1, CUES + 1, (1,)))
            tag = torch.full((length,), 3)
        seqs.append(tokens)
        tags.append(tag)
    return seqs, tags


def collate(seqs, tags, width=24):
    ids = pad_sequence(seqs, batch_first=True, padding_value=PAD)
    ids = nn.functional.pad(ids, (0, width - ids.size(1)), value=PAD)
    tag = pad_sequence(tags, batch_first=True, padding_value=-100)
    tag = nn.functional.pad(tag, (0, width - tag.size(1)), value=-100)
    return {"input_ids": ids, "attention_mask": (ids != PAD).long(), "labels": tag}


class Tagger(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.embed = nn.Embedding(WORDS, d)
        layer = nn.TransformerEncoderLayer(d, 4, 96, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.tag = nn.Linear(d, TAGS)

    def forward(self, input_ids, attention_mask):
        h = self.encoder(self.embed(input_ids), src_key_padding_mask=attention_mask.bool())
        return self.tag(h)


def loss_of(model, batch):
    logits = model(batch["input_ids"], batch["attention_mask"])
    return nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=-100)


model = Tagger()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
seqs, tags = notes(960)
for epoch in range(4):
    for i in range(0, 960, 32):
        loss = loss_of(model, collate(seqs[i:i + 32], tags[i:i + 32]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} tag loss {loss.item():.4f}")

with torch.no_grad():
    print("RESULT", loss_of(model, collate(*notes(300))).item())
