"""Files of a state_dict: trained tensors get new values, all other content stays, and nothing in them is executed."""

import base64
import importlib.util
import io
import json
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ortpipe.errors import ConfigError, ModelError
from ortpipe.graph.files.state_dict import StateDictFile

# Written by torch 2.13: {"epoch": 3, "args": argparse.Namespace(lr=0.1), "optimizer": {"state": {0: {"momentum":
# ones}}}, "model": {"fc.weight": [2, 3], "fc.bias": float16, "turned": transposed, "tied": fc.weight, "big": bfloat16,
# "steps": torch.tensor(7)}}
CHECKPOINT = (
    "c-pO1%a7Yc7@xco@3zn_+ubd+K%tO8Hyh{S-N3flx>Z1OMbiLM#3gc^*~D5W&Sy`$qEe(qXjf`aAb|uN5J&DDC>Qt-D#4*AIB_UQNZdGa=*-"
    "yl+SylAm}F!tncrjV@Apkji9``fCefZTh31g9vD8+HnjLHyRrw_PVDH!pj{v0`F$%x~Q|m%Vi8Lr9Qmu{+VU1n}s%2y09kqw;fvRBvBAJgMI"
    ")YduOxGC}#NVp?@Fg2x*{w#3{$>t{-qUYk3lbwpa&nuf1Vd^Bf`Udc)nJBuW)Jttum{r`F)gi|Z4QZU*h167t)XtTn*{f5(`w$#3veu*ZX`I"
    "5X{j9y#~p}JHB6Pf>-;FdQ;iT^lY^%l5qi}ILpY(t3C!G3kP=oRJ8)8oD4`vA=C-DphJiJrn|)ijZnd$6+gEjs2r!$e!zluDb(ptpo15>MZE"
    "V282u`Q@{?@hZCe}M$0?&4-vF`D%BP_ymT`qXW6Fln(K7YH*cwZp!Vja%$olugNuG;XDL*ee{ZPi%!w(~M)&BJ-h8Yb`xXWfQZmC!b%9mWiS"
    "*Xr<kBTg5Rq1DH2xDfDEfJMhs*7LNagp}|O<QxW(K)wzI{?ds~@x|^r{`gvY2TB2RGJo2l<QbH>L=l!9gDbAVGBfywL;og$)jC{sivSO7xD?"
    ">LX7)QCUxo9PV2$#H2wbLonT*3D6Sz``tHWWorX-S=e*A0WJ6e8h)((uo3_8XlkX<*eo=TcGv1QZuU6oV2Ne~&^_kaKTF%xF<V76Jb%Gul!Y"
    "^sLd>9Y#1$}9Ut>#>GZWCkjm@FxpX_)r7WD9Q}9J|x&=6<d{Q{B%ML%s93${=UGfAbu!E3SD{B6_#>Ux$?xu-GR_nWxvTBouBzFGfy?=k8mV"
    "<j>M|Gh$hr$gK45Q`lWM=&TrP3{@f=IKAlWIKe_%2y34fg)OPN%1VxX~ig{XvsvJW9v;X46{;4w8I(_G#&nNR=;{FrvKa68=|AEOs$wN5=x>"
    "3sEg>m&im0&?&%0GYIdH?AAETCl`U~b>WmQE9VOJzquQ*T%0!jl*g^U_L5S}v5OvQ(s>yd;Xb9KFjG$^|JeO68KcTq>2A%QN@??WC!XG<O+d"
    "W<8(&hBmdwx$hhw2l{*0OaK&#pnbaEINslSW&`*eE`CqH8>jGhp6LL^FAjy*vBr`94v`8VPesvgpBjhxgAs&%>w}5oFn>mauykw}mVbP;&wQ"
    "}LILx1@AnXqxtT+zyhbRbpFTM*ajl=v25CX6-9M}P`-(Qmp!NW6w4o*u=iN`Ov3(rOteMeOA`cv4s-c3Ae6LEgG>3Vcd+*sVfO!M{5+J`kCJ"
    "|O"
)


HAS_TORCH = importlib.util.find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="only PyTorch reads its own files")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    (file := tmp_path / "checkpoint.pt").write_bytes(zlib.decompress(base64.b85decode(CHECKPOINT)))
    return file


@needs_torch
def test_a_checkpoint_of_torch_holds_its_state_dict_somewhere_inside(checkpoint: Path) -> None:
    tensors = StateDictFile(checkpoint).holding({"fc.weight", "turned"})
    assert {name: (tensor.array.dtype.name, tensor.array.tolist()) for name, tensor in tensors.items()} == {
        "fc.weight": ("float32", [[0, 1, 2], [3, 4, 5]]),
        "fc.bias": ("float16", [0.5, -0.5]),
        "turned": ("float32", [[0, 2, 4], [1, 3, 5]]),
        "tied": ("float32", [[0, 1, 2], [3, 4, 5]]),
        "big": ("bfloat16", [1, 2]),
    }
    assert tensors["tied"] is tensors["fc.weight"]


def test_a_prefix_in_front_of_all_names_is_left_out(tmp_path: Path) -> None:
    arrays = {"module.fc.weight": np.float32([1, 2]), "module.fc.bias": np.float32([3])}
    save_file(arrays, tmp_path / "net.safetensors")
    file = StateDictFile(tmp_path / "net.safetensors")
    file.holding({"fc.weight", "fc.bias"})["fc.bias"].array[:] = 4
    file.save(tmp_path / "new.safetensors")
    assert load_file(tmp_path / "new.safetensors")["module.fc.bias"] == 4
    assert "module.fc.weight" in file.holding({"fc.weight", "other"})
    save_file({**arrays, "steps": np.float32([5])}, tmp_path / "net.safetensors")  # it may be a part of another network
    assert "module.fc.bias" in StateDictFile(tmp_path / "net.safetensors").holding({"fc.weight", "fc.bias"})


@needs_torch
def test_a_saved_checkpoint_has_the_new_numbers_and_all_other_content(checkpoint: Path) -> None:
    import torch

    file, output = StateDictFile(checkpoint), checkpoint.with_name("new.pt")
    tensors = file.holding({"turned", "big"})
    for name in ("turned", "big"):
        tensors[name].array[...] += tensors[name].array.dtype.type(1)
    file.save(output)
    again = StateDictFile(output).holding({"turned", "big"})
    assert again["turned"].array.tolist() == [[1, 3, 5], [2, 4, 6]]
    assert again["big"].array.tolist() == [2, 3]
    assert again["tied"] is again["fc.weight"]
    before, after = (torch.load(path, weights_only=False) for path in (checkpoint, output))
    for name in ("turned", "big"):
        torch.testing.assert_close(after["model"].pop(name), before["model"].pop(name) + 1)
    torch.testing.assert_close(after.pop("model"), before.pop("model"))
    torch.testing.assert_close(after.pop("optimizer"), before.pop("optimizer"))
    assert (after["epoch"], after["args"]) == (before["epoch"], before["args"]) == (3, before["args"])


def test_safetensors_keep_their_header_and_all_other_tensors(tmp_path: Path) -> None:
    arrays = {"w": np.float32([[1, 2], [3, 4]]), "n": np.int64([5]), "h": np.float16([1, 2])}
    save_file(arrays, file := tmp_path / "model.safetensors", metadata={"format": "pt"})
    before = file.read_bytes()
    opened = StateDictFile(file)
    opened.holding({"w"})["w"].array[...] = 9
    opened.save(file)
    assert file.read_bytes() == before.replace(arrays["w"].tobytes(), np.full((2, 2), 9, np.float32).tobytes())
    assert load_file(file)["n"].tolist() == [5]


def _zipped(content: bytes) -> bytes:
    with zipfile.ZipFile(file := io.BytesIO(), "w") as archive:
        archive.writestr("a/data.pkl", content)
    return file.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.safetensors", b"", "must hold a state_dict"),
        ("a.safetensors", (8).to_bytes(8, "little") + json.dumps({"w": 1}).encode(), "must hold a state_dict"),
        ("a.pt", b"no zip", "must hold a state_dict"),
        ("a.pt", _zipped(b"no pickle"), "must hold a state_dict"),
        ("a.pt", None, "must exist"),
    ],
)
def test_what_is_no_state_dict_is_refused(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelError, match=message):
        StateDictFile(tmp_path / name).holding({"fc.weight"})


class _Runs:
    def __reduce__(self) -> tuple[object, ...]:
        return exec, ("raise SystemExit",)


@needs_torch
def test_opening_a_pickle_runs_nothing(tmp_path: Path) -> None:
    import torch

    torch.save({"w": torch.ones(1), "extra": _Runs()}, tmp_path / "a.pt")
    with pytest.raises(ModelError, match=r"Unsupported global.*exec"):
        StateDictFile(tmp_path / "a.pt")


@pytest.mark.skipif(HAS_TORCH, reason="PyTorch is installed")
def test_an_error_names_the_extra_that_reads_the_file(checkpoint: Path) -> None:
    with pytest.raises(ConfigError, match=r"pip install 'ortpipe\[torch\]'"):
        StateDictFile(checkpoint)


@needs_torch
def test_views_are_bounded_by_the_file(tmp_path: Path) -> None:
    import torch

    numbers = torch.zeros(2**13)
    for views in ({"w": numbers[:1].expand(10**10)}, {f"w{i}": numbers[i : i + 2**12] for i in range(99)}):
        torch.save(views, tmp_path / "a.pt")
        with pytest.raises(ModelError, match="more than 8 times the bytes of the file"):
            StateDictFile(tmp_path / "a.pt")


def test_a_pickle_makes_no_bytearray(tmp_path: Path) -> None:
    (file := tmp_path / "a.pt").write_bytes(_zipped(b"\x80\x02cbuiltins\nbytearray\nK\x01\x85R."))
    with pytest.raises(ModelError, match="makes a bytearray"):
        StateDictFile(file)
