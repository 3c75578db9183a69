"""Loop, Scan and the recurrent operators for onnx's evaluator, which knows no axes, directions or lengths of theirs."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun


class Loop(OpRun):
    """A body again and again: onnx's own lines scanned outputs up along their first axis instead of a new one."""

    op_domain = ""

    def need_context(self) -> bool:
        """Return True: the body reads what is around it."""
        return True

    def _run(self, count: Any, going: Any, *states: Any, context: Any = None, body: Any = None, **_: Any) -> Any:
        names, held, rows, i = self.body.input_names, list(states), [], 0
        while (going is None or going) and (count is None or i < count):
            start = True if going is None else going
            fed = dict(zip(names, [np.int64(i), np.bool_(start), *held], strict=True))
            going, *ends = self._run_body({**(context or {}), **fed})
            held, row = ends[: len(states)], ends[len(states) :]
            rows.append(row)
            i += 1
        return (*held, *(np.stack(column) for column in zip(*rows, strict=True)))


class Scan(OpRun):
    """A body along slices: onnx's own takes the first axis and one direction alone."""

    op_domain = ""

    def need_context(self) -> bool:
        """Return True: the body reads what is around it."""
        return True

    def _run(self, *args: Any, context: Any = None, num_scan_inputs: Any = None, **given: Any) -> Any:
        split = len(args) - num_scan_inputs
        states, scanned = list(args[:split]), args[split:]
        columns: list[list[np.ndarray]] = [[] for _ in self.body.output_names[split:]]
        axes, ways = (given.get(f"scan_input_{k}") or [0] * len(scanned) for k in ("axes", "directions"))
        length = scanned[0].shape[axes[0]]
        for i in range(length):
            places = [length - 1 - i if way else i for way in ways]
            items = [np.take(v, p, a) for v, p, a in zip(scanned, places, axes, strict=True)]
            fed = dict(zip(self.body.input_names, [*states, *items], strict=True))
            ends = self._run_body({**(context or {}), **fed})
            states = ends[:split]
            for column, value in zip(columns, ends[split:], strict=True):
                column.append(value)
        axes, ways = (given.get(f"scan_output_{k}") or [0] * len(columns) for k in ("axes", "directions"))
        rows = (c[::-1] if way else c for c, way in zip(columns, ways, strict=True))
        return (*states, *(np.stack(c, a) for c, a in zip(rows, axes, strict=True)))


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


class _Recurrent(OpRun):
    """One step after the other, each way; rows beyond their lengths give 0 and keep their state."""

    op_domain = ""
    states = 1

    def _step(self, gates: Any, h: Any, c: Any, r: Any, b: Any, p: Any) -> tuple[Any, Any]:
        raise NotImplementedError

    def _run(self, x: Any, w: Any, r: Any, b: Any = None, lengths: Any = None, *states: Any, **given: Any) -> Any:
        time, batch, _ = x.shape
        ways, size = len(w), r.shape[2]
        h0 = states[0] if states and states[0] is not None else np.zeros([ways, batch, size])
        c0 = states[1] if len(states) > 1 and states[1] is not None else np.zeros([ways, batch, size])
        p = states[2] if len(states) > 2 and states[2] is not None else np.zeros([ways, 3 * size])
        b = b if b is not None else np.zeros([ways, 2 * w.shape[1]])
        lengths = lengths if lengths is not None else np.full(batch, time)
        self._linear = given.get("linear_before_reset")
        self._clip = given.get("clip") or np.inf
        y, ends = np.zeros([time, ways, batch, size]), np.array([h0, c0])
        for way in range(ways):
            backwards = given.get("direction") == "reverse" or way == 1
            for row in range(batch):
                h, c = h0[way, row], c0[way, row]
                for t in range(lengths[row])[:: -1 if backwards else 1]:
                    h, c = self._step(w[way] @ x[t, row], h, c, r[way], b[way], p[way])
                    y[t, way, row] = h
                ends[:, way, row] = h, c
        return (y, *ends[: self.states])

    def _cut(self, x: Any) -> Any:
        return np.clip(x, -self._clip, self._clip)


class RNN(_Recurrent):
    """h' = tanh(W x + R h + b)."""

    def _step(self, gates: Any, h: Any, c: Any, r: Any, b: Any, p: Any) -> tuple[Any, Any]:
        return np.tanh(self._cut(gates + r @ h + b[: len(r)] + b[len(r) :])), c


class GRU(_Recurrent):
    """h' = (1 − z) n + z h."""

    def _step(self, gates: Any, h: Any, c: Any, r: Any, b: Any, p: Any) -> tuple[Any, Any]:
        n = len(h)
        before, after = b[: 3 * n], b[3 * n :]
        z, reset = np.split(_sigmoid(self._cut((gates + before + after)[: 2 * n] + r[: 2 * n] @ h)), 2)
        last, bias = r[2 * n :], after[2 * n :]
        inner = reset * (last @ h + bias) if self._linear else last @ (reset * h) + bias
        return (1 - z) * np.tanh(self._cut((gates + before)[2 * n :] + inner)) + z * h, c


class LSTM(_Recurrent):
    """c' = f c + i g, h' = o tanh(c'), with peepholes."""

    states = 2

    def _step(self, gates: Any, h: Any, c: Any, r: Any, b: Any, p: Any) -> tuple[Any, Any]:
        i, o, f, g = np.split(gates + r @ h + b[: len(r)] + b[len(r) :], 4)
        pi, po, pf = np.split(p, 3)
        i, f, g = _sigmoid(self._cut(i + pi * c)), _sigmoid(self._cut(f + pf * c)), np.tanh(self._cut(g))
        new = f * c + i * g
        return _sigmoid(self._cut(o + po * new)) * np.tanh(new), new


OPERATORS = (Loop, Scan, RNN, GRU, LSTM)
