"""A folder with model.onnx and config.json, as Hugging Face's optimum exports it."""

import json

import numpy as np
import onnx
import pytest

from ortpipe.app.run.folder import keep_inputs, kept_input
from ortpipe.data.rows import Data, Rows
from ortpipe.errors import ConvertError
from ortpipe.pipeline.plan import Stage, Step
from ortpipe.stages.convert.config import ConvertConfig
from ortpipe.stages.convert.sources.onnx_file import OnnxFile
from ortpipe.stages.convert.stage import convert

SCORES = """<ir_version: 10, opset_import: ["" : 21]>
 g (int64[N,L] input_ids) => (float[N,2] logits) <float[3,2] tok = {0.1, 2, -1, 0.5, 3, -2}>
 { h = Gather(tok, input_ids) axes = Constant<value = int64[1] {1}>() logits = ReduceMean<keepdims=0>(h, axes) }"""
LABELS = {"id2label": {"1": "good", "0": "bad"}, "architectures": ["TinyForSequenceClassification"]}


@pytest.fixture
def folder(tmp_path):
    onnx.save(onnx.parser.parse_model(SCORES), tmp_path / "model.onnx")
    return tmp_path


def facts(folder, said=None, **settings):
    if said is not None:
        (folder / "config.json").write_text(json.dumps(said))
    rows = Rows({"input_ids": np.array([[0, 1], [2, 0], [1, 1]])}, np.array(["good", "bad", "good"]))
    return convert(None, ConvertConfig(OnnxFile(str(folder), **settings)), data=Data(rows)).facts


def test_the_labels_of_config_json_are_the_classes_of_raw_scores(folder):
    found = facts(folder, LABELS)
    assert (found.classes, found.logits) == (("bad", "good"), "logits")
    assert "raw scores of bad, good" in found.lineage[0]["notes"][0]
    assert facts(folder, classes=("no", "yes")).classes == ("no", "yes")  # the config has the last word


@pytest.mark.parametrize(
    ("said", "task"),
    [
        ({**LABELS, "problem_type": "multi_label_classification"}, "multilabel"),
        ({**LABELS, "problem_type": "regression"}, "regression"),
    ],
)
def test_config_json_says_the_task(folder, said, task):
    assert facts(folder, said).task == task


@pytest.mark.parametrize("said", [{**LABELS, "architectures": ["TinyModel"]}, {"id2label": ["bad"]}])
def test_labels_that_every_config_has_or_too_few_say_no_task(folder, said):
    with pytest.raises(ConvertError, match=r"must be certain(?s:.)*Set source\.task=multiclass source\.scores=logits"):
        facts(folder, said)


def test_an_input_of_tokens_that_the_data_lack_is_asked_for_in_the_words_of_data_tokens(folder):
    kinds = "k = Gather(tok, token_type_ids) h = Add(w, k)"
    text = SCORES.replace("h = Gather", "w = Gather").replace("axes =", f"{kinds} axes =", 1)
    text = text.replace("(int64[N,L] input_ids)", "(int64[N,L] input_ids, int64[N,L] token_type_ids)")
    onnx.save(onnx.parser.parse_model(text), folder / "model.onnx")
    with pytest.raises(ConvertError) as refusal:
        facts(folder)
    assert refusal.value.fix.startswith("Add token_type_ids to data's tokens.inputs, or set source.fixed=")


def test_a_folder_of_several_models_asks_for_the_file(folder):
    (folder / "model.onnx").rename(folder / "one.onnx")
    (folder / "two.onnx").write_bytes((folder / "one.onnx").read_bytes())
    with pytest.raises(ConvertError, match=r"one\.onnx, two\.onnx"):
        facts(folder)


def test_a_run_keeps_a_copy_of_the_folder_that_repro_reads(folder, tmp_path_factory):
    (folder / "config.json").write_text(json.dumps(LABELS))
    (folder / "onnx").mkdir()
    (folder / "model.onnx").rename(folder / "onnx" / "model.onnx")
    run = tmp_path_factory.mktemp("run")
    stage = Stage("convert", "ortpipe.stages.convert.stage:convert")
    keep_inputs((Step(stage, ConvertConfig(OnnxFile(str(folder)))),), run)
    assert kept_input("convert.source", str(folder), run) == str(run / "inputs")
    assert facts(run / "inputs").classes == ("bad", "good")
