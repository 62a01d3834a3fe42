"""The reference loop learns, and equal settings give equal runs."""

import torch
from torch import nn

from cleave.train.loop import Training, TrainingSettings
from cleave.train.text import ByteText

SETTINGS = TrainingSettings(n_steps=20, n_rows=4, context=8, learning_rate=0.05)


def losses(settings: TrainingSettings = SETTINGS) -> list[float]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(256, 16), nn.Dropout(0.1), nn.Linear(16, 256))
    training = Training(model, ByteText("to be or not to be, " * 10), settings)
    return [record.loss for record in training.steps()]


def test_the_loss_falls() -> None:
    run = losses()
    assert len(run) == 20
    assert run[-1] < 0.6 * run[0]


def test_equal_settings_give_the_same_run_dropout_included() -> None:
    assert losses() == losses()


def test_the_rate_warms_up_and_ends_at_a_tenth() -> None:
    settings = TrainingSettings(n_steps=100, learning_rate=1.0)
    assert settings.rate(0) == 0.1
    assert settings.rate(9) == settings.rate(10) == 1.0
    assert 0.1 < settings.rate(99) < 0.11


def test_norms_and_biases_do_not_decay() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    training = Training(model, ByteText("x"), SETTINGS)
    shapes = [
        [tuple(p.shape) for p in group["params"]] for group in training.optimizer.param_groups
    ]
    assert shapes == [[(4, 4)], [(4,), (4,), (4,)]]
