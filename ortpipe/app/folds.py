"""Cross-validation: the config's flow once per fold, before the run's own fit on its own split."""

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ortpipe import OrtpipeError
from ortpipe.app.assemble import plan_of, remember_teacher
from ortpipe.app.pulse import PULSE
from ortpipe.app.schema import RunConfig
from ortpipe.app.stop import stop_if_asked
from ortpipe.data.load import read_rows, split_rows
from ortpipe.errors import under
from ortpipe.pipeline.run import run
from ortpipe.pipeline.store import Store

SHOWN = 3  # metrics of a fold's line


def cross_validate(config: RunConfig, context: Mapping[str, Any], store: Store | None) -> dict[str, tuple[float, ...]]:
    """Return the trained model's metrics on the test rows of each fold; a metric undefined in a fold is left out."""
    count, results = config.evaluate.folds, list[dict[str, float]]()
    plain = replace(config.evaluate, by=(), bootstrap=0, importance=0, sensitivity=False)
    plan = plan_of(replace(config, evaluate=plain))
    with under("data"):
        rows = read_rows(config.data)
    for number in range(count):
        PULSE.step(f"fold {number + 1} of {count}")
        try:
            with under("data"):
                data = split_rows(rows, config.data, (number, count), remember_teacher(store))
            fold_context = {**context, "data": data, "start": None}
            artifact = run(plan, fold_context, [lambda event: stop_if_asked()], store)
        except OrtpipeError as error:
            error.add_note(f"{'fold':<14} {number + 1} of {count}")
            raise
        results.append({name: values["trained"] for name, values in artifact.facts.metrics.items()})
        shown = ", ".join(f"{name} {value:.4f}" for name, value in list(results[-1].items())[:SHOWN])
        print(f"fold {number + 1} of {count}: {shown}", file=sys.stderr, flush=True)
    names = [name for name in results[0] if all(name in result for result in results)] if results else []
    return {name: tuple(result[name] for result in results) for name in names}
