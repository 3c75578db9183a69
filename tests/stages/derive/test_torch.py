"""Whole networks exported from PyTorch: the native engine's gradients against torch.autograd, in float32."""

from __future__ import annotations

import io
import warnings

import numpy as np
import onnx
import pytest

from ortpipe.graph.serial import lowered
from ortpipe.runtime.session import Session
from ortpipe.stages.derive.engines import Native

torch = pytest.importorskip("torch", reason="PyTorch is the oracle here, and is not installed")
nn = torch.nn
TOLERANCE = 1e-4  # max |difference| / max |torch's gradient|, per parameter


class Sequence(nn.Module):
    """An LSTM's last hidden state, classified."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(3, 5, batch_first=True), nn.Linear(5, 4)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


NETWORKS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 7), nn.Tanh(), nn.Linear(7, 4)), (6,)),
    "convolutions": (
        lambda: nn.Sequential(
            *(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(4, 6, 3), nn.Sigmoid(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(6, 4)),
        ),
        (1, 8, 8),
    ),
    "lstm": (Sequence, (5, 3)),
}


class WithLoss(nn.Module):
    """A network and its mean cross-entropy, as one module."""

    def __init__(self, network) -> None:
        super().__init__()
        self.network, self.loss = network, nn.CrossEntropyLoss()

    def forward(self, x, label):
        return self.loss(self.network(x), label)


@pytest.mark.parametrize("name", NETWORKS)
def test_every_parameter_has_the_gradient_that_autograd_gives(name):
    make, shape = NETWORKS[name]
    torch.manual_seed(0)
    module = WithLoss(make())
    x, label = torch.randn(7, *shape), torch.arange(7) % 4
    module.train()
    with torch.no_grad():
        module(x, label)  # batch normalization gets statistics of its own
    module.eval()
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            (x, label),
            file,
            input_names=["x", "label"],
            output_names=["loss"],
            dynamic_axes={"x": {0: "N"}, "label": {0: "N"}},
            dynamo=False,
            opset_version=17,
            do_constant_folding=False,
            training=torch.onnx.TrainingMode.PRESERVE,
        )
    model = lowered(onnx.load_model_from_string(file.getvalue()))
    module(x, label).backward()
    wanted = {n: p.grad.numpy() for n, p in module.named_parameters()}
    known = {t.name for t in model.graph.initializer}
    parameters = [n for n in wanted if n in known]
    derived, names = Native()(model, "loss", parameters, [])
    session = Session(derived)
    values = dict(zip(session.outputs, session.run({"x": x.numpy(), "label": label.numpy()}), strict=True))
    assert len(parameters) >= len(wanted) // 2
    for parameter in parameters:
        expected, got = wanted[parameter], values[names[parameter]]
        assert np.abs(got - expected).max() <= TOLERANCE * np.abs(expected).max()
