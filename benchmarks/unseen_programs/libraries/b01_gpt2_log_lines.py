"""Train a tiny GPT-2 on synthetic event-log token streams with the transformers Trainer."""
import math
import tempfile

import torch

torch.set_num_threads(1)
torch.manual_seed(11)

import torch.nn.functional as F
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

VOCAB, SEQ = 40, 33


class EventLog(Dataset):
    """Each stream follows one of a few service grammars, with occasional random events."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        rule = torch.Generator().manual_seed(5)
        nxt = torch.stack([torch.randperm(VOCAB - 3, generator=rule) for _ in range(2)]) + 3
        cur = torch.randint(3, VOCAB, (n,), generator=g)
        service = torch.randint(0, 2, (n,), generator=g)
        cols = [service + 1, cur]
        for _ in range(SEQ - 2):
            step = nxt[service, cur - 3]
            noise = torch.rand(n, generator=g) < 0.1
            cur = torch.where(noise, torch.randint(3, VOCAB, (n,), generator=g), step)
            cols.append(cur)
        self.ids = torch.stack(cols, dim=1)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i]}


class LMCollator:
    """Stacks a list of examples and prepares inputs and targets for language modelling."""

    def __call__(self, examples):
        ids = torch.stack([e["input_ids"] for e in examples])
        return {
            "input_ids": ids[:, :-1].contiguous(),
            "attention_mask": torch.ones_like(ids[:, :-1]),
            "labels": ids[:, 1:].contiguous(),
        }


@torch.no_grad()
def next_event_nll(model, data, batch=64):
    model.eval()
    total, count = 0.0, 0
    for s in range(0, len(data), batch):
        ids = data.ids[s:s + batch]
        logits = model(input_ids=ids[:, :-1]).logits
        total += F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="sum").item()
        count += ids[:, 1:].numel()
    return total / count


def main():
    train, valid = EventLog(1600, 1), EventLog(256, 2)
    config = GPT2Config(
        vocab_size=VOCAB, n_positions=SEQ, n_embd=64, n_layer=2, n_head=4,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    )
    model = GPT2LMHeadModel(config)
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(
            output_dir=out, report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True,
            per_device_train_batch_size=32, max_steps=150, learning_rate=3e-3, warmup_steps=15,
            lr_scheduler_type="cosine", weight_decay=0.01, logging_steps=30, seed=11,
            dataloader_pin_memory=False,
        )
        trainer = Trainer(
            model=model, args=args, train_dataset=train, data_collator=LMCollator(),
        )
        trainer.train()
    nll = next_event_nll(model, valid)
    print(f"perplexity of the next event {math.exp(nll):.2f}")
    print(f"RESULT {nll:.4f}")


if __name__ == "__main__":
    main()
