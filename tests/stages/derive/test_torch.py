"""Whole networks exported from PyTorch: the native engine's gradients against torch.autograd, in float32."""

from __future__ import annotations

import io
import warnings

import numpy as np
import onnx
import pytest
from engines import native

from ortpipe.graph.importing.lower import lowered
from ortpipe.runtime.session import Session

torch = pytest.importorskip("torch", reason="PyTorch is the oracle here, and is not installed")
nn = torch.nn
TOLERANCE = 1e-5  # max |difference| / max |torch's gradient|, per parameter; the worst seen is 6e-7


class Sequence(nn.Module):
    """An LSTM's last hidden state, classified."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(3, 5, batch_first=True), nn.Linear(5, 4)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


class Transformer(nn.Module):
    """An encoder layer's first position, classified; without dropout, which would draw other masks."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.encoder(x)[:, 0])


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
    "transformer": (Transformer, (5, 8)),
}


class WithLoss(nn.Module):
    """A network and its mean cross-entropy, as one module."""

    def __init__(self, network) -> None:
        super().__init__()
        self.network, self.loss = network, nn.CrossEntropyLoss()

    def forward(self, x, label):
        return self.loss(self.network(x), label)


def exported(module, inputs, exporter):
    """Return the module as today's exporter writes it, or as the older one that traces it."""
    options = {"input_names": ["x", "label"], "output_names": ["loss"], "dynamo": exporter == "dynamo"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if exporter == "dynamo":
            pytest.importorskip("onnxscript", reason="torch.onnx.export needs onnxscript")
            rows = {0: torch.export.Dim("N")}
            program = torch.onnx.export(
                module, inputs, dynamic_shapes=(rows, rows), opset_version=18, optimize=False, verbose=False, **options
            )
            return program.model_proto
        file = io.BytesIO()
        kept = {"do_constant_folding": False, "training": torch.onnx.TrainingMode.PRESERVE}
        rows = {name: {0: "N"} for name in options["input_names"]}
        torch.onnx.export(module, inputs, file, dynamic_axes=rows, opset_version=17, **kept, **options)
    return onnx.load_model_from_string(file.getvalue())


@pytest.mark.parametrize("exporter", ["tracing", "dynamo"])
@pytest.mark.parametrize("name", NETWORKS)
def test_every_parameter_has_the_gradient_that_autograd_gives(name, exporter):
    make, shape = NETWORKS[name]
    torch.manual_seed(0)
    module = WithLoss(make())
    with torch.no_grad():
        for parameter in module.parameters():  # the exporter merges tensors that are equal
            parameter += 0.1 * torch.randn_like(parameter)
    x, label = torch.randn(7, *shape), torch.arange(7) % 4
    module.train()
    with torch.no_grad():
        module(x, label)  # batch normalization gets statistics of its own
    module.eval()
    model = lowered(exported(module, (x, label), exporter))
    module(x, label).backward()
    wanted = {n: p.grad.numpy() for n, p in module.named_parameters()}
    assert wanted.keys() <= {t.name for t in model.graph.initializer}
    derived, names = native(model, "loss", list(wanted), [])
    session = Session(derived)
    values = dict(zip(session.outputs, session.run({"x": x.numpy(), "label": label.numpy()}), strict=True))
    for parameter, expected in wanted.items():
        assert np.abs(values[names[parameter]] - expected).max() <= TOLERANCE * np.abs(expected).max()
