"""The table of forms: how each operator that has a derivative is drawn, one family per file.

A form is `form(sketch)`: it writes nodes and returns the float values, one or several, that may be read on. It raises
Rejected where it fits neither the opset nor the values that there are.
"""

from collections.abc import Callable, Sequence

from fuzz.forms import (
    control_flow,
    elementwise,
    indexing,
    linear,
    newer,
    recurrent,
    reductions,
    shapes,
    windows,
)
from fuzz.sketch import Sketch

Form = Callable[[Sketch], str | Sequence[str]]
MODULES = (control_flow, elementwise, indexing, linear, newer, recurrent, reductions, shapes, windows)
FORMS: dict[str, Form] = {name: form for module in MODULES for name, form in module.FORMS.items()}
# Rules whose result is no slope by intent, and what they are held against instead.
NO_SLOPE = {
    "QuantizeLinear": "straight through: tests/autodiff/rules/test_quantization.py",
    "DequantizeLinear": "reads integers: tests/autodiff/rules/test_quantization.py",
}
