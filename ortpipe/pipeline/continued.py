"""Find a stored result with fewer epochs, from which a stage can continue."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from pkgutil import resolve_name
from typing import Any

from ortpipe.artifact import Artifact
from ortpipe.pipeline.digest import Parts, key_of
from ortpipe.pipeline.locks import Notify
from ortpipe.pipeline.plan import Step
from ortpipe.pipeline.store import Entry, Store

KEYS_PER_READ = 20  # a key is computed in a twentieth of the time that reading an entry takes


def stored_part(step: Step, parts: Parts, context: Mapping[str, Any], store: Store) -> tuple[int, Entry] | None:
    """Return the most epochs whose state is stored, fewer than the step's, and the entry that has it."""
    shared_epochs = resolve_name(f"{step.stage.continued}:shared_epochs")
    starts = [
        (shared_epochs(step.config, epochs, entry.record, context["data"]), entry)
        for epochs, entry in _shorter(step, parts, store)
    ]
    return max((start for start in starts if start[0]), key=lambda start: start[0], default=None)


def _shorter(step: Step, parts: Parts, store: Store) -> Iterator[tuple[int, Entry]]:
    """Yield the stored results with fewer epochs and otherwise the same parts, each after its number of epochs."""
    name, epochs = step.stage.name, step.config.epochs
    keys = {file.stem for file in store.files(name, lambda _: None)}
    if epochs < KEYS_PER_READ * len(keys):
        keys &= {key_of(_with_epochs(parts, fewer)) for fewer in range(1, epochs)}
    for entry in filter(None, (store.find(name, key) for key in sorted(keys))):
        match entry.parts:
            case {step.stage.name: {"epochs": int(fewer)}} if fewer < epochs:
                if entry.key == key_of(_with_epochs(parts, fewer)) and store.has(entry.output):
                    yield fewer, entry


def _with_epochs(parts: Parts, epochs: int) -> Parts:
    """Return the parts of the same result with another number of epochs."""
    name = parts["stage"]
    return {**parts, name: {**parts[name], "epochs": epochs}}


def start(
    step: Step,
    artifact: Artifact | None,
    parts: Parts,
    context: Mapping[str, Any],
    store: Store,
    notify: Notify,
    run_or_load: Callable[..., object],
) -> dict[str, Any]:
    """Return the context for a step to continue from a stored result; {} if none is stored.

    First, `run_or_load` stores the results with fewer epochs that the config asks for, each continuing the one before.
    """
    for epochs in resolve_name(f"{step.stage.continued}:states_of")(step.config):
        shorter = Step(step.stage, dataclasses.replace(step.config, epochs=epochs, states=None))
        its_parts = _with_epochs(parts, epochs)
        run_or_load(shorter, artifact, its_parts, key_of(its_parts), context, store, notify)
    part = stored_part(step, parts, context, store)
    taken = None if part is None else store.take(step.stage.name, part[1].key, artifact, notify)
    if part is None or taken is None:
        return {}
    result, entry = taken
    notify(f"continues after epoch {part[0]}, which {entry.run.get('folder', 'another run')} computed")
    return {"start": resolve_name(f"{step.stage.continued}:state_after")(part[0], result.tensors)}
