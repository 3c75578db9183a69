"""RNN, GRU and LSTM."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuzz.sketch import Sketch

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def recurrent(kind: str) -> Callable[[Sketch], list[str]]:
    """Return the form of a recurrent operator, with all its inputs or the first three."""

    def form(s: Sketch) -> list[str]:
        x = s.x(3, shape=[s.size(1, 4), s.size(1, 3), s.size(1, 3)])
        time, batch, features = s.of(x)
        direction = s.choose(["forward", "reverse", "bidirectional"])
        ways, hidden, gates = 2 if direction == "bidirectional" else 1, s.size(1, 3), GATES[kind]
        w, r = s.source([ways, gates * hidden, features]), s.source([ways, gates * hidden, hidden])
        bias = s.source([ways, 2 * gates * hidden]) if s.flag(0.6) else None
        lengths = None
        if s.flag(0.3):
            lengths = s.const(s.rng.integers(1, time + 1, batch).astype("int32"), "int32")
        state = [s.source([ways, batch, hidden]) if s.flag() else None]
        if kind == "LSTM":
            state.append(s.source([ways, batch, hidden]) if s.flag() else None)
            state.append(s.source([ways, 3 * hidden]) if s.flag(0.4) else None)
        given: dict[str, Any] = {"hidden_size": hidden}
        if direction != "forward" or s.flag():
            given["direction"] = direction
        if kind == "GRU" and s.flag():
            given["linear_before_reset"] = 1
        if s.flag(0.2):
            given["clip"] = 5.0
        return s.op(kind, [x, w, r, bias, lengths, *state], 3 if kind == "LSTM" else 2, **given)

    return form


FORMS = {kind: recurrent(kind) for kind in GATES}
