"""Transfer a small ViT from one texture task to another, in two stages."""
import tempfile

import torch

torch.set_num_threads(1)
torch.manual_seed(14)

from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers import ViTConfig, ViTForImageClassification

SIZE = 16


class Textures(Dataset):
    """Gratings; the class is the orientation, at a spatial frequency given by the task."""

    def __init__(self, n, seed, freq, classes):
        g = torch.Generator().manual_seed(seed)
        self.y = torch.randint(0, classes, (n,), generator=g)
        angle = self.y * torch.pi / classes + 0.08 * torch.randn(n, generator=g)
        phase = 2 * torch.pi * torch.rand(n, generator=g)
        axis = torch.linspace(-1, 1, SIZE)
        yy, xx = torch.meshgrid(axis, axis, indexing="ij")
        wave = xx * angle.cos()[:, None, None] + yy * angle.sin()[:, None, None]
        img = torch.sin(freq * torch.pi * wave + phase[:, None, None])
        self.x = (img + 0.5 * torch.randn(n, SIZE, SIZE, generator=g))[:, None]

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return {"pixel_values": self.x[i], "labels": self.y[i]}


class UnfreezeBody(TrainerCallback):
    """Keeps the transformer body frozen for the first steps, then lets it train too."""

    def __init__(self, at_step):
        self.at_step = at_step

    def on_step_begin(self, args, state, control, model=None, **kwargs):
        if state.global_step == self.at_step:
            for p in model.vit.parameters():
                p.requires_grad_(True)
            print(f"step {state.global_step}: body unfrozen")


def arguments(out, steps, lr):
    return TrainingArguments(
        output_dir=out, report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True,
        per_device_train_batch_size=32, max_steps=steps, learning_rate=lr, warmup_steps=8,
        lr_scheduler_type="cosine", logging_steps=20, seed=14, dataloader_pin_memory=False,
    )


@torch.no_grad()
def mean_loss(model, data):
    model.eval()
    parts = [model(pixel_values=x, labels=y).loss * len(y)
             for x, y in zip(data.x.split(100), data.y.split(100))]
    return (sum(parts) / len(data)).item()


def main():
    model = ViTForImageClassification(ViTConfig(
        image_size=SIZE, patch_size=4, num_channels=1, hidden_size=48, num_hidden_layers=2,
        num_attention_heads=4, intermediate_size=96, num_labels=3,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    ))
    target, valid = Textures(1600, 2, 3.0, 8), Textures(400, 3, 3.0, 8)
    with tempfile.TemporaryDirectory() as out:
        source = Textures(800, 1, 1.0, 3)
        Trainer(model=model, args=arguments(out, 40, 2e-3), train_dataset=source).train()
        model.classifier = torch.nn.Linear(48, 8)
        model.config.num_labels = model.num_labels = 8
        for p in model.vit.parameters():
            p.requires_grad_(False)
        trainer = Trainer(
            model=model, args=arguments(out, 140, 2e-3), train_dataset=target,
            callbacks=[UnfreezeBody(at_step=20)],
        )
        trainer.train()
    print(f"RESULT {mean_loss(model, valid):.4f}")


if __name__ == "__main__":
    main()
