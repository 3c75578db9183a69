"""An .onnx file without rows: roles of inputs, and rows and labels that it accepts."""

from pathlib import Path

import onnx

from ortpipe.stages.convert.inspection import examine, labels_of

RECURRENT = """<ir_version: 8, opset_import: ["": 18]>
g (float[T,N,2] x, float[1,N,3] begin, int64[N] length) => (float[T,1,N,3] y, float[1,N,3] end)
<int64[3] w_size = {1,9,2}, int64[3] r_size = {1,9,3}, int64[1] none = {0},
 int64[1] one = {1}> {
  w = ConstantOfShape(w_size)
  r = ConstantOfShape(r_size)
  first = Slice(begin, none, one)
  y, end = GRU<hidden_size=3>(x, w, r, , , first)
}"""
MASKED = """<ir_version: 8, opset_import: ["": 18]>
g (int64[N,T] ids, int64[N,T] mask) => (float[N,2] y)
<float[5,2] table = {1,2,3,4,5,6,7,8,9,10}, int64[1] one = {1}, int64[1] minus = {-1}> {
  wide = Cast<to=7>(ids)
  e = Gather(table, wide)
  m = Cast<to=1>(mask)
  u = Unsqueeze(m, minus)
  k = Mul(e, u)
  s = ReduceSum<keepdims=0>(k, one)
  y = Softmax(s)
}"""


def saved(text: str, path: Path) -> Path:
    onnx.save(onnx.parser.parse_model(text), path)
    return path


def test_the_first_state_of_a_recurrent_layer_is_zero(tmp_path: Path) -> None:
    examined = examine(saved(RECURRENT, tmp_path / "rnn.onnx"))
    assert examined.fixed == {"begin": 0}
    assert [role.reason for role in examined.roles.values()][2] == "not read by any node"


def test_indices_stay_below_the_length_of_their_table_and_masks_are_1(tmp_path: Path) -> None:
    examined = examine(saved(MASKED, tmp_path / "ids.onnx"))
    rows = examined.rows
    assert set(rows["ids"].ravel()) == {0, 1, 2, 3, 4}
    assert rows["mask"].all()
    assert examined.size == rows["ids"].shape[1]
    [(labels, settings), *_] = labels_of(examined.prediction("y"))
    assert (labels.shape, settings, set(labels)) == ((len(rows["ids"]),), {}, {0, 1})
