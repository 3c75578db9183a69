"""The losses of a run as a table."""

import io

import numpy as np

from ortpipe.artifact import Artifact, under


def losses_parquet(artifact: Artifact) -> bytes:
    """Return the losses, and what is watched, as a Parquet file: a row per step, then per epoch.

    Columns: `kind` (string: step, train, validation, or the name of what is watched), `number` (int64, of the step or
    epoch, from 1), `value` (float64, null where not evaluated), `rate` (float64, of a step; null elsewhere).
    """
    import pyarrow as pa
    from pyarrow import parquet

    tensors = artifact.tensors
    epochs = {kind: tensors[f"losses/{kind}"] for kind in ("train", "validation") if f"losses/{kind}" in tensors}
    kinds = {"step": tensors["losses/step"], **epochs, **under("monitor", tensors)}
    lengths = [len(values) for values in kinds.values()]
    value = np.concatenate([*kinds.values()]).astype(np.float64)
    rate = np.full(len(value), np.nan)
    rates = tensors.get("losses/rate", ())
    rate[: len(rates)] = rates
    table = pa.table(
        {
            "kind": pa.array(np.repeat(list(kinds), lengths), pa.string()),
            "number": pa.array(np.concatenate([np.arange(1, n + 1) for n in lengths]), pa.int64()),
            "value": pa.array(value, pa.float64(), mask=np.isnan(value)),
            "rate": pa.array(rate, pa.float64(), mask=np.isnan(rate)),
        }
    )
    buffer = io.BytesIO()
    parquet.write_table(table, buffer)
    return buffer.getvalue()
