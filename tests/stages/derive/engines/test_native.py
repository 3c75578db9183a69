"""What the native engine's gradients look like in a graph."""

from __future__ import annotations

from ortpipe.stages.derive.stage import derive


def test_the_gradient_of_a_kernel_over_free_axes_says_its_sizes(from_text):
    loss = from_text(
        "g (float[N,2,T] x) => (float loss) <float[3,2,4] w = "
        f"{{{', '.join(map(str, range(24)))}}}> {{ h = Conv<strides=[2]>(x, w) loss = ReduceMean<keepdims=0>(h) }}",
        loss="loss",
    )
    [node] = [node for node in derive(loss).model.graph.node if "w_grad" in node.output]
    assert node.op_type == "Reshape"
