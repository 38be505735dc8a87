"""Teach a tiny T5 to reverse short note sequences, with own optimizer and schedule."""
import tempfile

import torch

torch.set_num_threads(1)
torch.manual_seed(2)

from torch.utils.data import Dataset
from transformers import T5Config, T5ForConditionalGeneration, Trainer, TrainingArguments
from transformers import get_linear_schedule_with_warmup

VOCAB, PAD, EOS = 20, 0, 1
CONFIG = {"epochs": 12, "batch": 64, "lr": 4e-3, "train_size": 1024}


class Reversal(Dataset):
    """Source: notes and an end mark. Target: the same notes from last to first."""

    def __init__(self, n, seed, length=5):
        g = torch.Generator().manual_seed(seed)
        notes = torch.randint(2, VOCAB, (n, length), generator=g)
        end = torch.full((n, 1), EOS)
        self.src = torch.cat([notes, end], dim=1)
        self.tgt = torch.cat([notes.flip(1), end], dim=1)

    def __len__(self):
        return len(self.src)

    def __getitem__(self, i):
        return {"input_ids": self.src[i], "labels": self.tgt[i]}


def build_model():
    return T5ForConditionalGeneration(T5Config(
        vocab_size=VOCAB, d_model=48, d_kv=12, d_ff=96, num_layers=1, num_decoder_layers=1,
        num_heads=4, dropout_rate=0.0, decoder_start_token_id=PAD, pad_token_id=PAD,
        eos_token_id=EOS, relative_attention_num_buckets=16, relative_attention_max_distance=16,
    ))


def build_optimizers(model, train):
    decay, plain = [], []
    for name, p in model.named_parameters():
        (plain if "layer_norm" in name or p.ndim < 2 else decay).append(p)
    groups = [{"params": decay, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=CONFIG["lr"])
    steps = len(train) // CONFIG["batch"]
    scheduler = get_linear_schedule_with_warmup(
        optimizer, num_warmup_steps=5, num_training_steps=steps
    )
    return optimizer, scheduler


@torch.no_grad()
def mean_loss(model, data):
    model.eval()
    parts = [model(input_ids=s, labels=t).loss * len(s)
             for s, t in zip(data.src.split(64), data.tgt.split(64))]
    return (sum(parts) / len(data)).item()


def main():
    train, valid = Reversal(CONFIG["train_size"], 1), Reversal(256, 2)
    model = build_model()
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(
            output_dir=out, report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True,
            per_device_train_batch_size=CONFIG["batch"], num_train_epochs=CONFIG["epochs"],
            eval_strategy="epoch", per_device_eval_batch_size=128, logging_steps=16, seed=2,
            dataloader_pin_memory=False,
        )
        trainer = Trainer(
            model=model, args=args, train_dataset=train, eval_dataset=valid,
            optimizers=build_optimizers(model, train),
        )
        trainer.train()
    print(f"RESULT {mean_loss(model, valid):.4f}")


if __name__ == "__main__":
    main()
