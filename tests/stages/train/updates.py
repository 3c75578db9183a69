"""One optimizer's update as a function, and the published implementations that it has to equal.

python -m stages.train.updates    (from tests/, with PyTorch and Optax installed) writes traces.json anew
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx_ir as ir

from ortpipe.graph.core.builder import Builder, Names
from ortpipe.graph.core.check import finish
from ortpipe.runtime.config import RuntimeConfig
from ortpipe.runtime.session import Session
from ortpipe.runtime.xla.client import devices
from ortpipe.stages.train.links import Inputs
from ortpipe.stages.train.optimizers import OPTIMIZERS

STEPWISE = [
    name for name in OPTIMIZERS if OPTIMIZERS[name].solver == "minibatch"
]  # those that write a step as graph nodes
TRACES = Path(__file__).parent / "traces.json"
STEPS = 40
# member → (its settings, the published implementation, the settings that the implementation gives the same meaning)
PUBLISHED = {
    "sgd": ({"lr": 0.05}, "torch.optim.SGD", {}),
    "momentum": ({"lr": 0.05, "momentum": 0.8}, "torch.optim.SGD", {"momentum": 0.8}),
    "nesterov": ({"lr": 0.05, "momentum": 0.8}, "torch.optim.SGD", {"momentum": 0.8, "nesterov": True}),
    "adagrad": ({"lr": 0.1, "epsilon": 1e-6}, "torch.optim.Adagrad", {"eps": 1e-6}),
    "rmsprop": ({"lr": 0.02, "alpha": 0.9}, "torch.optim.RMSprop", {"alpha": 0.9}),
    "adadelta": ({"lr": 0.7, "rho": 0.8}, "torch.optim.Adadelta", {"rho": 0.8}),
    "adam": ({"lr": 0.05, "beta1": 0.8, "beta2": 0.95}, "torch.optim.Adam", {"betas": (0.8, 0.95)}),
    "amsgrad": ({"lr": 0.05, "beta2": 0.8}, "torch.optim.Adam", {"betas": (0.9, 0.8), "amsgrad": True}),
    "adamw": ({"lr": 0.05, "weight_decay": 0.3}, "torch.optim.AdamW", {"weight_decay": 0.3}),
    "nadam": ({"lr": 0.05, "epsilon": 1e-4}, "torch.optim.NAdam", {"eps": 1e-4}),
    "lion": ({"lr": 0.03, "weight_decay": 0.2}, "optax.lion", {"weight_decay": 0.2}),
}


def slots_of(optimizer):
    return [slot for link in optimizer() for slot in link.slots]


def scalars_of(optimizer, rates, steps):
    """Return the scalars of an optimizer's links by the names that they have in a step."""
    names = Names()
    return {
        names.fresh(name): function(rates, steps) for link in optimizer() for name, function in link.scalars.items()
    }


def update(optimizer, shape, dtype):
    """Return the update as a function (parameter, gradient, state, rate, number of the step) → (parameter, state)."""
    kind = ir.DataType.from_numpy(np.dtype(dtype))
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 21}, name="update")
    op = Builder(graph, "update")
    parameter, u = op.input("parameter", kind, shape), op.input("gradient", kind, shape)
    following = []
    for link in optimizer():
        state = [op.input(slot, kind, shape) for slot in link.slots]
        scalars = [op.input(name, kind, []) for name in link.scalars]
        u, state = link.update(op, Inputs(parameter, u, state, scalars))
        following += state
    graph.outputs.extend([op.Add(parameter, u), *following])
    for output in graph.outputs:
        output.type, output.shape = ir.TensorType(kind), ir.Shape(shape)
    session = Session(finish(ir.Model(graph, ir_version=10)))

    def call(parameter, gradient, state, rate, number=1):
        scalars = scalars_of(optimizer, np.array([rate], np.float64), np.array([number]))
        feeds = {name: value.reshape(()).astype(dtype) for name, value in scalars.items()}
        feeds |= dict(zip(slots_of(optimizer), state, strict=True))
        moved, *slots = session.run({"parameter": parameter, "gradient": gradient, **feeds})
        return moved, slots

    return call


def noise():
    """Return the start, and what is added to the gradient 2θ of every step."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(3, 2)), rng.normal(size=(STEPS, 3, 2))


def rates(name):
    """Return a rate for every step: it halves on the way.

    PyTorch's velocity is not scaled by the rate, as scikit-learn's and ours is: with one rate they are the same.
    """
    return PUBLISHED[name][0]["lr"] * np.linspace(1, 1 if name in ("momentum", "nesterov") else 0.5, STEPS)


def trace(name):
    """Return where the published implementation is after each step [steps, 3, 2]."""
    settings, published, options = PUBLISHED[name]
    package, *_, kind = published.split(".")
    follow = _torch if package == "torch" else _optax
    return follow(kind, settings["lr"], options, rates(name))


def _torch(kind, lr, options, rates):
    import torch

    start, added = noise()
    value = torch.tensor(start, requires_grad=True)
    optimizer, places = getattr(torch.optim, kind)([value], lr=lr, **options), []
    for rate, noisy in zip(rates, added, strict=True):
        optimizer.param_groups[0]["lr"] = float(rate)
        value.grad = 2 * value.detach() + torch.tensor(noisy)
        optimizer.step()
        places.append(value.detach().numpy().copy())
    return np.array(places)


def _optax(kind, lr, options, rates):
    import jax
    import optax

    devices(RuntimeConfig(engine="xla"))  # starts JAX as the engine does, once
    value, added = noise()
    make, places = optax.inject_hyperparams(getattr(optax, kind)), []
    optimizer = make(learning_rate=lr, **options)
    with jax.enable_x64(True):
        state = optimizer.init(value)
        for rate, noisy in zip(rates, added, strict=True):
            state.hyperparams["learning_rate"] = rate
            moved, state = optimizer.update(2 * value + noisy, state, value)
            value = np.asarray(optax.apply_updates(value, moved))
            places.append(value)
    return np.array(places)


if __name__ == "__main__":
    traces = {name: {"by": PUBLISHED[name][1], "places": trace(name).tolist()} for name in PUBLISHED}
    TRACES.write_text(json.dumps(traces, indent=None, separators=(",", ":")) + "\n")
