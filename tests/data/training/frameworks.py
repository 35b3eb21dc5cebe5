"""Small trainings in the frameworks people use. Arguments: the scenarios to run, one after the other."""

import gc
import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from tests.data.training.evidence import draw, report, run_each

# What frameworks say of each other's versions is not what is tested here.
warnings.simplefilter("ignore")
os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")


def made_up(samples: int) -> TensorDataset:
    """A regression."""
    inputs = torch.randn(samples, 16)
    return TensorDataset(inputs, inputs.sum(1, keepdim=True))


def train_with_lightning(package: Any, name: str, devices: int = 1) -> None:
    """Two epochs of four steps of two micro-batches, each followed by a validation and a checkpoint; then a test."""

    class Regression(package.LightningModule):
        """Logs its loss by step and by epoch, and draws random numbers."""

        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.1), nn.Linear(32, 1))

        def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
            loss = nn.functional.mse_loss(self.net(batch[0] + draw()), batch[1])
            self.log("loss", loss, on_step=True, on_epoch=True, prog_bar=True)
            return loss

        def validation_step(self, batch: tuple[Tensor, Tensor]) -> None:
            self.log("val_loss", nn.functional.mse_loss(self.net(batch[0]), batch[1]))

        def test_step(self, batch: tuple[Tensor, Tensor]) -> None:
            self.log("test_loss", nn.functional.mse_loss(self.net(batch[0]), batch[1]))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    model, held_out = Regression(), DataLoader(made_up(16), batch_size=8)
    with tempfile.TemporaryDirectory() as folder:
        trainer = package.Trainer(
            max_epochs=2,
            accelerator="cpu",
            devices=devices,
            accumulate_grad_batches=2,
            gradient_clip_val=1.0,
            num_sanity_val_steps=0,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
        )
        trainer.fit(model, DataLoader(made_up(64), batch_size=8, shuffle=True), held_out)
        trainer.test(model, held_out, verbose=False)
    report(
        name,
        model,
        logged=sorted(trainer.callback_metrics),
        global_step=trainer.global_step,
        rank=trainer.global_rank,
    )


def lightning() -> None:
    """The package of today."""
    train_with_lightning(import_module("lightning.pytorch"), "lightning")


def lightning_ddp() -> None:
    """The same on two ranks, of which Lightning starts the second by running this script again."""
    train_with_lightning(import_module("lightning.pytorch"), "lightning_ddp", devices=2)


def fabric() -> None:
    """Four steps of two micro-batches of a loop of the user's own, and a checkpoint, which is loaded."""
    package = import_module("lightning.fabric")
    run = package.Fabric(accelerator="cpu", devices=1)
    model = nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.1), nn.Linear(32, 1))
    model, optimizer = run.setup(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
    loader = run.setup_dataloaders(DataLoader(made_up(64), batch_size=8, shuffle=True))
    for number, (inputs, targets) in enumerate(loader):
        with run.no_backward_sync(model, enabled=number % 2 == 0):
            loss = nn.functional.mse_loss(model(inputs + draw()), targets)
            run.backward(loss)
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()
            run.log("loss", loss, step=number // 2)
    with tempfile.TemporaryDirectory() as folder:
        run.save(f"{folder}/last.ckpt", {"model": model, "optimizer": optimizer})
        run.load(f"{folder}/last.ckpt", {"model": model, "optimizer": optimizer})
    report("fabric", model)


def pytorch_lightning() -> None:
    """The same under its former name."""
    train_with_lightning(import_module("pytorch_lightning"), "pytorch_lightning")


class Texts(Dataset[dict[str, Tensor]]):
    """Texts of eight tokens, each of a class."""

    def __init__(self, count: int):
        self._texts = torch.randint(0, 50, (count, 8))

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self._texts[index], "labels": self._texts[index, 0] % 2}


def transformers() -> None:
    """Two epochs of four steps of two micro-batches, each followed by an evaluation; a checkpoint each four steps."""
    package = import_module("transformers")
    config = package.BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=8,
    )
    model, texts, held_out = package.BertForSequenceClassification(config), Texts(32), Texts(8)
    with tempfile.TemporaryDirectory() as folder:
        arguments = package.TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=4,
            per_device_eval_batch_size=4,
            gradient_accumulation_steps=2,
            num_train_epochs=2,
            logging_steps=1,
            save_steps=4,
            eval_strategy="epoch",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        )
        step = 0
        for resume_from in (None, f"{folder}/checkpoint-4"):
            trainer = package.Trainer(model=model, args=arguments, train_dataset=texts, eval_dataset=held_out)
            trainer.remove_callback(package.PrinterCallback)
            trainer.train(resume_from_checkpoint=resume_from)
            step = trainer.state.global_step
            # While the optimizer that led is there, another one has to step several times to take its place.
            del trainer
            gc.collect()
    report("transformers", model, global_step=step)


def accelerate() -> None:
    """Two epochs of four steps of two micro-batches, each followed by a validation; a checkpoint, which is loaded."""
    accelerator = import_module("accelerate").Accelerator(gradient_accumulation_steps=2, cpu=True)
    ranks = accelerator.num_processes
    model = nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.1), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = DataLoader(made_up(64 * ranks), batch_size=8, shuffle=True)
    held_out = DataLoader(made_up(16 * ranks), batch_size=8)
    model, optimizer, loader, held_out = accelerator.prepare(model, optimizer, loader, held_out)
    steps = 0
    for _epoch in range(2):
        model.train()
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.mse_loss(model(inputs + draw()), targets)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                steps += 1
                accelerator.log({"loss": loss}, step=steps)
        model.eval()
        val_losses = []
        for inputs, targets in held_out:
            with torch.no_grad():
                val_losses.append(nn.functional.mse_loss(model(inputs), targets).item())
        accelerator.log({"val_loss": sum(val_losses), "note": "a text"}, steps)
    with tempfile.TemporaryDirectory() as folder:
        place = accelerator.gather_for_metrics([folder], use_gather_object=True)[0]
        accelerator.save_state(place)
        accelerator.wait_for_everyone()
        accelerator.load_state(input_dir=place)
        accelerator.wait_for_everyone()
    report("accelerate", model, rank=accelerator.process_index)
    accelerator.end_training()


SCENARIOS: dict[str, Callable[[], None]] = {
    "lightning": lightning,
    "lightning_ddp": lightning_ddp,
    "fabric": fabric,
    "pytorch_lightning": pytorch_lightning,
    "transformers": transformers,
    "accelerate": accelerate,
}

if __name__ == "__main__":
    run_each(SCENARIOS, sys.argv[1:])
