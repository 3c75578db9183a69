"""What is rewritten in a script of the earlier libraries before it runs here, rule by rule."""

import re
from dataclasses import dataclass

STAND_INS = "acceptance.scripts.stand_ins"


@dataclass(frozen=True)
class Rewrite:
    """A rule: every match of `pattern` gives way to `replacement`, because of `why`."""

    pattern: str
    replacement: str
    why: str


REWRITES = (
    Rewrite(
        r"from (onnxcustom|onnxcustom\.utils|onnxcustom\.utils\.benchmark) import",
        rf"from {STAND_INS} import",
        "opset constants and a timer are not ortpipe's",
    ),
    Rewrite(
        r"from experimental_experiment\.(ext_test_case|helpers|gradient\.ops) import",
        rf"from {STAND_INS} import",
        "the library's own test case, printer, and kernels of gradient operators, which ortpipe's graphs do not need",
    ),
    Rewrite(
        r"from (onnxcustom\.(training|utils|plotting)|experimental_experiment\.gradient)[\w.]* import",
        "from ortpipe.compat import",
        "the imports",
    ),
    Rewrite(
        r"from (mlprodict|c?pyquickhelper)[\w.]* import", rf"from {STAND_INS} import", "they run on no current NumPy"
    ),
    Rewrite(
        r"(try:\s+)from onnxruntime import TrainingSession",
        r"\1TrainingSession = object",
        "tests ask whether this class, gone since 1.14, is there; they do not use it",
    ),
    Rewrite(r"'onnxcustom'", "'ortpipe'", "the logger's name"),
    Rewrite(r"(SGDClassifier\(loss=)'log'", r"\1'log_loss'", "scikit-learn 1.3 renamed the loss"),
    Rewrite(r"(\._backprop\([^)]*?yp, )(?=activations)", r"\1None, ", "scikit-learn 1.7 added the rows' weights"),
    Rewrite(
        r"pivot\('dim', 'impl', 'average'\)",
        "pivot(index='dim', columns='impl', values='average')",
        "pandas 2 takes names only",
    ),
    Rewrite(
        r"make_model\(graph, opset_imports=opset_imports\)",
        "make_model(graph, opset_imports=opset_imports, ir_version=8)",
        "onnx stamps its own newest IR version, which onnxruntime-training does not load",
    ),
    Rewrite(
        r"(?m)^from sklearn\.metrics import .*\blog_loss\b.*$",
        rf"\g<0>\nfrom {STAND_INS} import log_loss",
        "scikit-learn 1.5 removed log_loss(eps=)",
    ),
)


def rewritten(text: str) -> str:
    """Return a script with every rule applied, in order.

    >>> rewritten("from onnxcustom.training.excs import (\\n    ConvergenceError)")
    'from ortpipe.compat import (\\n    ConvergenceError)'
    """
    for rule in REWRITES:
        text = re.sub(rule.pattern, rule.replacement, text)
    return text
