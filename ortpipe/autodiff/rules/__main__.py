"""Print the operators that have a gradient, and those without one, as the table of docs/reference/operators.md."""

import onnx

from ortpipe.autodiff.table import EXPANSIONS, RULES
from ortpipe.graph.core.operators import having
from ortpipe.graph.importing.opsets import NEW

NEWEST = 24  # the newest opset that the table covers


def table() -> str:
    """Return a Markdown table of the operators: by family, those rewritten as others, those without a gradient."""
    lines = ["| family | operators |", "|---|---|"]
    lines += [f"| {family} | {', '.join(sorted(rules))} |" for family, rules in RULES.families.items()]
    lines.append(f"| as other operators | {', '.join(sorted({*EXPANSIONS, *having('holds'), *NEW} - {*RULES}))} |")
    lines.append(f"| without a gradient | {', '.join(_without())} |")
    return "\n".join(lines)


def _without() -> list[str]:
    """Return ONNX's operators from floats to floats that have neither a rule nor an expansion nor a function body."""
    names = {s.name for s in onnx.defs.get_all_schemas_with_history() if not s.domain and s.since_version <= NEWEST}
    uncovered = sorted(names - {*RULES, *EXPANSIONS, *having("source", "holds"), *NEW})
    return [name for name in uncovered if _is_of_floats(onnx.defs.get_schema(name, NEWEST))]


def _is_of_floats(schema: onnx.defs.OpSchema) -> bool:
    kinds = {t.type_param_str: t.allowed_type_strs for t in schema.type_constraints}
    of = [
        any("(float)" in kind for p in side for kind in kinds.get(p.type_str, ()))
        for side in (schema.inputs, schema.outputs)
    ]
    return all(of) and not (schema.deprecated or schema.has_function or schema.has_context_dependent_function)


if __name__ == "__main__":
    print(table())
