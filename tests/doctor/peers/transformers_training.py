"""A small language model trained by the Trainer of transformers in bf16."""

import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Tokens(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, number):
        generator = torch.Generator().manual_seed(number)
        tokens = torch.randint(0, 40, (12,), generator=generator)
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    torch.manual_seed(3)
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16, "vocab_size": 40}
    model = GPT2LMHeadModel(GPT2Config(bos_token_id=0, eos_token_id=0, **sizes))
    with tempfile.TemporaryDirectory() as directory:
        arguments = TrainingArguments(
            output_dir=directory,
            use_cpu=True,
            bf16=True,
            num_train_epochs=2,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            eval_strategy="epoch",
            save_strategy="epoch",
            logging_steps=1,
            report_to=[],
            disable_tqdm=True,
        )
        trainer = Trainer(model, arguments, train_dataset=Tokens(), eval_dataset=Tokens())
        trainer.train()
        for entry in trainer.state.log_history:
            for name in ("loss", "eval_loss", "grad_norm"):
                if name in entry:
                    print(float(entry[name]).hex())  # noqa: T201  # what the test compares


main()
