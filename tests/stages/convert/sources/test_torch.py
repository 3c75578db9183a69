"""PyTorch's modules and programs. torch is in no test environment: these run where it is installed by hand."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

import onnx  # noqa: E402
import onnx_ir as ir  # noqa: E402
from torch import nn  # noqa: E402

from ortpipe.data.parts import SplitConfig  # noqa: E402
from ortpipe.data.raw_columns import RawColumn  # noqa: E402
from ortpipe.data.rows import Data, Rows  # noqa: E402
from ortpipe.data.split import split  # noqa: E402
from ortpipe.errors import ConvertError  # noqa: E402
from ortpipe.graph.forms.modes import set_seeds, to_inference  # noqa: E402
from ortpipe.runtime.session import Session  # noqa: E402
from ortpipe.stages.add_loss.config import AddLossConfig  # noqa: E402
from ortpipe.stages.add_loss.losses import LOSSES  # noqa: E402
from ortpipe.stages.add_loss.stage import add_loss  # noqa: E402
from ortpipe.stages.convert.config import ConvertConfig  # noqa: E402
from ortpipe.stages.convert.sources import SOURCES  # noqa: E402
from ortpipe.stages.convert.sources.onnx_file import OnnxFile  # noqa: E402
from ortpipe.stages.convert.stage import convert  # noqa: E402
from ortpipe.stages.derive.stage import derive  # noqa: E402
from ortpipe.stages.train.config import TrainConfig  # noqa: E402
from ortpipe.stages.train.optimizers import OPTIMIZERS  # noqa: E402
from ortpipe.stages.train.stage import train  # noqa: E402

BATCH, STEPS = 16, 20


class Images(nn.Module):
    """Convolution, both batch norms, one number and a dropout that drops nothing."""

    def __init__(self, p=0.0):
        super().__init__()
        # a bias in front of a batch norm has no gradient but rounding, of which Adam makes whole steps
        self.conv, self.norm, self.drop = nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.Dropout(p)
        self.plain, self.out = nn.BatchNorm1d(144, affine=False, momentum=0.3, eps=1e-3), nn.Linear(144, 3)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return self.out(self.plain(self.drop(torch.relu(self.norm(self.conv(x)))).flatten(1))) * self.scale


class Tokens(nn.Module):
    """Embeddings, a table of places (a buffer), and a Transformer encoder."""

    def __init__(self, p=0.0):
        super().__init__()
        self.tok = nn.Embedding(20, 16)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, p, batch_first=True), 2)
        self.out = nn.Linear(16, 3)
        self.register_buffer("places", torch.randn(1, 6, 16))

    def forward(self, ids):
        return self.out(self.encoder(self.tok(ids) + self.places).mean(1))


class Tied(nn.Module):
    """One matrix as embedding and as last layer, whole channels dropped, outputs by name."""

    def __init__(self):
        super().__init__()
        self.tok, self.drop, self.out = nn.Embedding(20, 8), nn.Dropout1d(0.4), nn.Linear(8, 20, bias=False)
        self.out.weight = self.tok.weight

    def forward(self, ids):
        h = self.drop(self.tok(ids))
        return {"logits": self.out(h.mean(1)), "hidden": h}


def rows(kind="x", seed=0):
    rng = np.random.default_rng(seed)
    made = {
        "x": lambda: rng.normal(size=(64, 10)).astype(np.float32),
        "image": lambda: rng.normal(size=(64, 1, 8, 8)).astype(np.float32),
        "ids": lambda: rng.integers(0, 20, (64, 6)),
    }[kind]()
    part = Rows({"X": made}, rng.integers(0, 3, 64))
    return Data(part, part, part)


def perceptron():
    return nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 3))


def made(module, data, **said):
    return convert(
        module, ConvertConfig(OnnxFile("net", **{"task": "multiclass", "scores": "logits", **said})), data=data
    )


def notes(artifact):
    return " | ".join(artifact.facts.lineage[0]["notes"])


class Given(nn.Module):
    """Multiplies with the masks that Dropout nodes of these seeds draw, each of them for the steps of an epoch."""

    def __init__(self, seeds, ratio, shape):
        super().__init__()
        text = """<ir_version: 10, opset_import: ["": 21]> g (float[N] x) => (float[N] y) {
            on = Constant<value = bool {1}>() p = Constant<value_float=%g>() y = Dropout<seed=%d>(x, p, on) }"""
        ones = {"x": np.ones(np.prod(shape), np.float32)}
        drawn = (Session(onnx.parser.parse_model(text % (ratio, seed))) for seed in seeds)
        self.masks = (session.run(ones, ["y"])[0].reshape(shape) for session in drawn for _ in range(64 // BATCH))

    def forward(self, x):
        return x * torch.from_numpy(next(self.masks))


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize(
    ("network", "kind"), [(perceptron, "x"), (Images, "image"), (lambda: Images(0.3), "image"), (Tokens, "ids")]
)
def test_ortpipe_and_a_pytorch_loop_have_the_same_losses_for_20_steps(network, kind, optimizer, monkeypatch):
    def seen(model, seed):
        set_seeds(model, seed)
        seeds.extend(node.attributes.get_int("seed") for node in model.graph.all_nodes() if node.op_type == "Dropout")

    seeds = []
    monkeypatch.setattr("ortpipe.stages.train.random_draws.set_seeds", seen)
    torch.manual_seed(0)
    module, data, lr = network(), rows(kind), {"sgd": 0.1, "adam": 0.005}[optimizer]
    loss = add_loss(made(module, data), AddLossConfig(LOSSES["cross_entropy"](), "mean"))
    config = TrainConfig(OPTIMIZERS[optimizer](lr), epochs=STEPS * BATCH // 64, batch_size=BATCH, shuffle=False)
    trained = train(derive(loss), config, data=data)
    [x], y = data.train.inputs.values(), torch.from_numpy(data.train.label)
    step = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[optimizer](module.parameters(), lr)
    if seeds:  # one for each epoch; PyTorch draws others
        assert len(set(seeds)) == config.epochs
        module.drop = Given(seeds, module.drop.p, (BATCH, 4, 6, 6))
    module.train()
    losses = []
    for first in [*range(0, 64, BATCH)] * config.epochs:
        step.zero_grad()
        value = nn.functional.cross_entropy(
            module(torch.from_numpy(x[first : first + BATCH])), y[first : first + BATCH]
        )
        value.backward()
        step.step()
        losses.append(value.item())
    assert len(losses) == STEPS
    np.testing.assert_allclose(np.ravel(trained.tensors["losses/step"]), losses, rtol=0, atol=1e-5)
    for name, array in module.state_dict().items():
        if name.endswith(("running_mean", "running_var")) or (
            optimizer == "sgd" and f"parameter/{name}" in trained.tensors
        ):
            np.testing.assert_allclose(trained.tensors[f"parameter/{name}"], array, atol=1e-4, err_msg=name)
    trained_names = {name for name, _ in module.named_parameters()}
    assert set(trained.facts.parameters) == trained_names  # by their names in state_dict, the one number too


def test_a_module_stays_as_it_was_and_the_same_bytes_come_of_it_twice():
    module, data = Images(0.5).eval(), rows("image")
    before, state = {k: v.clone() for k, v in module.state_dict().items()}, torch.get_rng_state()
    with pytest.warns(UserWarning, match=r"Images is in inference mode, and is trained as after module\.train"):
        first, second = made(module, data), made(module, data)
    assert first.digest() == second.digest()
    assert not any(part.training for part in module.modules())
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert "is in inference mode, and is trained" in notes(first)


@pytest.mark.parametrize(
    ("network", "kind", "count"), [(lambda: Tokens(0.25), "ids", 8), (lambda: Images(0.25), "image", 1)]
)
def test_dropout_is_restored_within_attention_too(network, kind, count):
    graph = made(network(), rows(kind)).ir_model().graph
    drops = [node for node in graph if node.op_type == "Dropout"]
    ratios = {float(node.inputs[1].const_value.numpy()) for node in drops if node.inputs[1].const_value is not None}
    assert len(drops) == count
    assert ratios <= {0.25}
    assert all(len(node.inputs) == 3 for node in drops)


def test_whole_channels_are_dropped_in_training_only_and_tied_weights_stay_one():
    artifact = made(Tied(), rows("ids"), prediction="logits")
    model = artifact.ir_model()
    model.graph.outputs.append(next(v for node in model.graph for v in node.outputs if v.name == "hidden"))
    hidden = Session(ir.to_proto(model)).run({"ids": rows("ids").train.inputs["X"]}, ["hidden"])[0]
    gone = (hidden == 0).all(axis=2)  # [64, 6]
    assert 0.3 < gone.mean() < 0.5
    assert ((hidden == 0).any(axis=2) == gone).all()
    assert to_inference(model)
    kept = Session(ir.to_proto(model)).run({"ids": rows("ids").train.inputs["X"]}, ["hidden"])[0]
    np.testing.assert_allclose(hidden[~gone], kept[~gone] / 0.6, rtol=1e-6)
    [name] = artifact.facts.parameters
    assert artifact.facts.lineage[0]["origins"][name]["state_dict"] in (
        ["tok.weight", "out.weight"],
        ["out.weight", "tok.weight"],
    )


def test_what_a_module_freezes_stays_and_is_said():
    module = Images(0.5)
    module.norm.eval(), module.drop.eval(), module.conv.weight.requires_grad_(False)
    module.plain = nn.BatchNorm1d(144, track_running_stats=False)
    artifact = made(module, rows("image"))
    assert "conv.weight" not in artifact.facts.parameters
    assert "norm.bias" in artifact.facts.parameters
    for words in ("batch norm frozen, as the module has it: norm", "plain keeps no others", "requires_grad is False"):
        assert words in notes(artifact)
    assert "drops nothing in 1 dropout layers" in notes(artifact)
    assert not [n for n in artifact.ir_model().graph if n.op_type == "Dropout"]


@pytest.mark.parametrize("training", [True, False])
def test_a_saved_program_trains_whatever_mode_it_was_exported_in(training, tmp_path):
    module, path = Images(0.25).train(training), str(tmp_path / "net.pt2")
    example = (torch.randn(3, 1, 8, 8),)
    rows_free = ({0: torch.export.Dim("rows")},)
    torch.export.save(torch.export.export(module, example, dynamic_shapes=rows_free), path)
    source = SOURCES["torch"](path=path, trust=True, task="multiclass", scores="logits")
    artifact = convert(None, ConvertConfig(source), data=rows("image"))
    kinds = [node.op_type for node in artifact.ir_model().graph]
    assert kinds.count("Dropout") == 1
    assert set(artifact.facts.parameters) == {n for n, _ in module.named_parameters()}
    norms = [node for node in artifact.ir_model().graph if node.op_type == "BatchNormalization"]
    assert [node.attributes.get_int("training_mode", 0) for node in norms] == [1, 1]
    assert ("exported in inference mode" in notes(artifact)) is not training
    with pytest.raises(ConvertError, match="opened only on request"):
        convert(None, ConvertConfig(SOURCES["torch"](path=path)))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    code = (
        "from torch import nn\n\n\ndef net(width=32):\n"
        "    return nn.Sequential(nn.Linear(10, width), nn.ReLU(), nn.Linear(width, 3))\n\n\nready = net()\n"
    )
    name = f"torch_nets_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    return tmp_path, name


def test_a_factory_draws_by_convert_s_seed_and_takes_weights_of_a_file(folder):
    path, name = folder
    said = {"task": "multiclass", "scores": "logits"}

    def weights(seed, **source):
        config = ConvertConfig(SOURCES["torch"](module=f"{name}:net", **said, **source), seed=seed)
        return convert(None, config, data=rows()).initializers

    state = torch.get_rng_state()
    first = weights(1)
    np.testing.assert_array_equal(first["0.weight"], weights(1)["0.weight"])
    assert not np.array_equal(first["0.weight"], weights(2)["0.weight"])
    assert torch.equal(torch.get_rng_state(), state)
    trained = perceptron().state_dict()
    torch.save(trained, path / "net.pt")
    np.testing.assert_array_equal(weights(1, weights=str(path / "net.pt"))["2.bias"], trained["2.bias"])
    with pytest.raises(ConvertError, match=r"0\.weight: \[32, 10\]"):
        weights(1, weights=str(path / "net.pt"), params={"width": 8})
    torch.save({"0.weight": trained["0.weight"]}, path / "part.pt")
    with pytest.raises(ConvertError, match=r"without 0\.bias"):
        weights(1, weights=str(path / "part.pt"))


def test_an_instance_comes_in_and_its_module_s_code_is_in_the_key(folder):
    from ortpipe import own_code
    from ortpipe.pipeline.digest import identity

    _path, name = folder
    source = SOURCES["torch"](module=f"{name}:ready", task="multiclass", scores="logits")
    assert len(convert(None, ConvertConfig(source), data=rows()).facts.parameters) == 4
    assert identity(source)["module"]["code"] == own_code.code(own_code.loaded(f"{name}:ready"))


class Branching(nn.Module):
    """Which branch is taken depends on the numbers."""

    def forward(self, x):
        return x if x.sum() > 0 else -x


@pytest.mark.parametrize("columns", [("age",), ("age", "bmi")])
def test_an_error_about_the_columns_of_a_table_names_the_setting_for_one_array(columns):
    raw = {name: RawColumn("number") for name in columns}
    data = split(Rows({name: np.arange(20.0) for name in columns}, np.arange(20.0), kept=raw), SplitConfig())
    with pytest.raises(ConvertError, match=r"For a table, data's source.inputs={input: null} makes one input"):
        convert(nn.Linear(len(columns), 1), data=data)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (Branching(), "torch.export must be able to export"),
        (nn.Sequential(nn.Linear(10, 3), nn.AlphaDropout(0.5)), "must have a form in ONNX"),
        (nn.Sequential(nn.Linear(10, 3), nn.BatchNorm1d(3, momentum=None)), "statistics need a momentum"),
        (nn.Bilinear(10, 10, 3), "arguments of the module's forward"),
    ],
)
def test_what_cannot_be_exported_is_refused_with_the_reason(module, words):
    with pytest.raises(ConvertError, match=words):
        made(module, rows())
