"""One training on several devices: the same bytes for any number of them, and those of workers up to rounding."""

import dataclasses
import importlib.util
import os
import subprocess
import sys

import numpy as np
import pytest
from command import ROOT
from sample import ALL
from stages.train import devices

from ortpipe.errors import OrtpipeError
from ortpipe.parallel import ParallelConfig
from ortpipe.runtime.config import RuntimeConfig
from ortpipe.stages.train.optimizers import OPTIMIZERS
from ortpipe.stages.train.stage import train

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("jax") is None, reason="runtime.engine=xla needs jax: pip install 'ortpipe[xla]'"
)


def test_any_number_of_devices_gives_the_same_bytes():
    flags = "--xla_force_host_platform_device_count=4"  # and all optimizations
    variables = {**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    command = [sys.executable, devices.__file__]
    done = subprocess.run(command, capture_output=True, text=True, env=variables, timeout=300)
    assert done.returncode == 0, done.stderr
    assert [len(set(line.split())) for line in done.stdout.splitlines()] == [1, int(ALL)]


def test_devices_train_as_workers_do_also_where_a_batch_has_fewer_rows_than_slices():
    model, data = devices.gradient_model(dropout=0.2, norm="batch"), devices.rows()
    changes = {"optimizer": OPTIMIZERS["sgd"](0.1), "batch_size": 32, "drop_last": False, "average": 0.9}
    by_workers = dataclasses.replace(devices.CONFIG, parallel=ParallelConfig(4, workers=1), **changes)
    by_devices = dataclasses.replace(by_workers, parallel=ParallelConfig(4, transport="devices", workers=1))
    expected = train(model, by_workers, data=data)
    split = train(model, by_devices, data=data, runtime=RuntimeConfig(engine="xla"))
    assert split.tensors.keys() == expected.tensors.keys()
    for name, tensor in expected.tensors.items():
        np.testing.assert_allclose(split.tensors[name], tensor, rtol=2e-3, atol=2e-5, err_msg=name)


@pytest.mark.parametrize(
    ("settings", "engine", "text"),
    [
        ({}, "onnxruntime", "got: runtime.engine=onnxruntime with train/parallel=devices"),
        ({"transport": "ray"}, "xla", "got: runtime.engine=xla with train/parallel=ray"),
        ({"every": "epoch"}, "xla", "Devices exchange gradients in every step"),
        ({"workers": 1000}, "xla", "got: 1000 workers, but JAX finds"),
    ],
)
def test_devices_that_cannot_train_are_rejected(settings, engine, text):
    parallel = ParallelConfig(**{"transport": "devices", **settings})
    config, runtime = dataclasses.replace(devices.CONFIG, parallel=parallel), RuntimeConfig(engine=engine)
    with pytest.raises(OrtpipeError, match=text):
        train(devices.gradient_model(), config, data=devices.rows(), runtime=runtime)
