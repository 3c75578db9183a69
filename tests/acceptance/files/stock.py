"""A model's outputs in a stock onnxruntime, one row at a time: run by the interpreter of a separate environment.

    python stock.py job.json

The job: `model`, `rows` (an .npz of the inputs by name, rows first), `output` (its name), `inputs` (values of those
that are no data, by name; zeros else), `axes` (the batch's axis of an input that has it elsewhere), `result` (an .npy:
the output, each row flattened).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

TYPES = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(uint8)": np.uint8,
    "tensor(bool)": np.bool_,
}


def main(job: dict[str, Any]) -> None:
    """Write the outputs of every row."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = ort.InferenceSession(job["model"], options, providers=["CPUExecutionProvider"])
    rows = dict(np.load(job["rows"]))
    count = len(next(iter(rows.values())))
    alone = len(rows) == 1
    results = []
    for place in range(count):
        fed = {}
        for spec in session.get_inputs():
            if spec.name in rows or (alone and spec.name not in job["inputs"] and not fed):
                array = rows.get(spec.name, next(iter(rows.values())))[place : place + 1]
                fixed = [d if isinstance(d, int) and d > 0 else None for d in spec.shape]
                if None not in fixed[1:] and array[0].size == int(np.prod(fixed[1:])):
                    array = array.reshape(len(array), *fixed[1:])
                array = np.moveaxis(array, 0, job["axes"].get(spec.name, 0))
            elif spec.name in job["inputs"]:
                array = np.array(job["inputs"][spec.name])
            else:  # a state
                array = np.zeros([d if isinstance(d, int) and d > 0 else 1 for d in spec.shape])
            fed[spec.name] = np.ascontiguousarray(array.astype(TYPES[spec.type]))
        [output] = session.run([job["output"]], fed)
        if isinstance(output, list):  # a ZipMap's
            output = np.array([list(row.values()) for row in output])
        results.append(output.astype(np.float64).reshape(-1))
    np.save(job["result"], np.stack(results))


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
