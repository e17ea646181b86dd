# SPDX-License-Identifier: Apache-2.0
"""The integrations in real trainers, two processes, tiny models, nothing downloaded."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from forks import launch, values
from torch import nn

EXACT = {"interval": "fixed", "interval_steps": 1, "wire": "float32"}
LOCAL = {"interval": "fixed", "interval_steps": 4, "domain": "parameter", "wire": "int8"}


def rows(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Samples that a small net can learn."""
    made = torch.Generator().manual_seed(5)
    x = torch.randn(count, 8, generator=made)
    y = (x @ torch.randn(8, 3, generator=made)).argmax(1)
    return list(zip(x, y))


def net() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 3))


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def check(plain: list[Any], exact: list[Any], local: list[Any], steps: int) -> None:
    """Exact equals plain, local ends equal on both ranks, and both are the library's doing."""
    for one, other in zip(plain, exact):
        for name, value in one["weights"].items():
            if "running" not in name:  # statistics: a mean over ranks instead of rank 0's
                assert torch.allclose(value, other["weights"][name], rtol=1e-4, atol=3e-6), name
    for name, value in local[0]["weights"].items():
        assert torch.equal(value, local[1]["weights"][name]), name
    assert exact[0]["summary"].steps == local[0]["summary"].steps == steps
    assert exact[0]["summary"].domain == "gradient"
    assert local[0]["summary"].domain == "parameter"
    assert local[0]["summary"].rounds < steps
    assert plain[0]["summary"] is None


class Classifier(nn.Module):
    """What transformers' Trainer wants: keywords in, a loss out."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        out = self.net(x)
        return {"loss": nn.functional.cross_entropy(out, labels), "logits": out}


def huggingface(settings: Any, folder: str) -> dict[str, Any]:
    import transformers

    from msdu.integrations.huggingface import MsduCallback

    data = [{"x": x, "labels": y} for x, y in rows(192)]
    args = transformers.TrainingArguments(
        output_dir=folder,
        num_train_epochs=2,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        learning_rate=0.02,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        save_strategy="no" if settings is None else "steps",
        save_steps=10,
        save_only_model=True,
        eval_strategy="epoch",
        ddp_find_unused_parameters=False,
    )
    callback = None if settings is None else MsduCallback(**settings)
    trainer = transformers.Trainer(
        Classifier(),
        args,
        train_dataset=data,
        eval_dataset=data[:32],
        callbacks=[callback] if callback else [],
    )
    trainer.train()
    return {
        "weights": weights(trainer.model),
        "summary": callback.state.summary() if callback else None,
    }


def test_huggingface_trainer(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    import transformers.trainer  # noqa: F401 - once, before the forks

    def train(settings: Any) -> Any:
        name = "plain" if settings is None else str(settings["interval_steps"])
        folder = tmp_path / name
        body = launch(2, lambda _: huggingface(settings, str(folder / "out")), folder)
        return values(body)

    check(train(None), train(EXACT), train(LOCAL), steps=24)


def lightning(settings: Any, folder: str) -> dict[str, Any]:
    import lightning.pytorch as pl
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.strategies import DDPStrategy

    from msdu.integrations.lightning import MsduStrategy

    class Model(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()
            self.seen: list[torch.Tensor] = []

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def validation_step(self, batch: Any, _: int) -> None:
            self.seen.append(self.net[0].weight.detach().clone())

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=0.01)

    model = Model()
    strategy = DDPStrategy() if settings is None else MsduStrategy(**settings)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=strategy,
        max_epochs=2,
        accumulate_grad_batches=2,
        callbacks=[ModelCheckpoint(folder, save_last=True)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    load = torch.utils.data.DataLoader(rows(192), batch_size=4)
    trainer.fit(model, load, torch.utils.data.DataLoader(rows(16), batch_size=8))
    summary = None if settings is None else strategy.state.summary()
    return {"weights": weights(model), "summary": summary, "seen": model.seen[2:]}


def test_lightning_strategy(tmp_path: Path) -> None:
    pytest.importorskip("lightning.pytorch")

    def train(settings: Any) -> Any:
        name = "plain" if settings is None else str(settings["interval_steps"])
        folder = tmp_path / name
        return values(launch(2, lambda _: lightning(settings, str(folder / "out")), folder))

    plain, exact, local = train(None), train(EXACT), train(LOCAL)
    check(plain, exact, local, steps=24)
    for one, other in zip(local[0]["seen"], local[1]["seen"]):
        assert torch.equal(one, other)  # in validation the ranks are equal
    saved = torch.load(os.path.join(tmp_path, "4", "out", "last.ckpt"), weights_only=False)
    assert torch.equal(saved["state_dict"]["net.0.weight"], local[0]["weights"]["net.0.weight"])
