import warnings

import numpy as np
import onnxruntime as ort
import pytest

from ortpipe.compat import (
    ProviderError,
    device_to_providers,
    get_ort_device,
    get_ort_device_from_session,
    get_ort_device_type,
    numpy_to_ort_value,
    ort_device_to_string,
    provider_to_device,
)
from ortpipe.compat.devices import DeviceTypeError, OrtDevice, OrtValue, _warn_of_gpu, cpu
from ortpipe.compat.functions import function_onnx_graph


@pytest.mark.parametrize(
    ("name", "back", "kind", "index"),
    [("cpu", "cpu", 0, 0), ("cuda", "cuda", 1, 0), ("gpu:0", "cuda", 1, 0), ("CUDA:2", "cuda:2", 1, 2)],
)
def test_a_device_goes_there_and_back(name: str, back: str, kind: int, index: int) -> None:
    device = get_ort_device(name)
    assert isinstance(device, OrtDevice)
    assert get_ort_device(device) is device
    assert (ort_device_to_string(device), get_ort_device_type(device), device.device_id()) == (back, kind, index)
    [provider] = device_to_providers(name)
    assert device_to_providers(device) == [provider]
    assert provider_to_device(provider) == back.partition(":")[0]


def test_what_is_no_device_is_an_error_of_value_or_type() -> None:
    for wrong in ("tpu", "", "cuda:x", "cpu2"):
        with pytest.raises(ProviderError):
            get_ort_device(wrong)
    for wrong in (0, ["cpu"], None):
        with pytest.raises(DeviceTypeError):
            get_ort_device_type(wrong)
        with pytest.raises(TypeError):
            ort_device_to_string(wrong)
    with pytest.raises(ValueError, match="CPUExecutionProvider"):
        provider_to_device("CPUExecution")
    assert issubclass(ProviderError, RuntimeError)


def test_a_gpu_is_taken_as_the_cpu_with_one_warning() -> None:
    _warn_of_gpu.cache_clear()
    with pytest.warns(UserWarning, match="computes on the CPU") as caught:
        assert [cpu(name) for name in ("cuda", "gpu:1", get_ort_device("cuda"), "cpu")] == ["cpu"] * 4
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cpu("cuda")
    _warn_of_gpu.cache_clear()


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int64, np.bool_])
def test_an_ort_value_holds_a_copy_of_the_rows(dtype: type) -> None:
    array = np.arange(12).reshape(4, 3).astype(dtype)
    value = numpy_to_ort_value(array.T)
    before = array.copy()
    array[:] = array[0, 0]
    assert isinstance(value, OrtValue)
    np.testing.assert_array_equal(value.numpy(), before.T)


def test_the_device_of_a_session_is_that_of_its_provider() -> None:
    model = function_onnx_graph("copy").SerializeToString()
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    for one in (session, session._sess):
        assert ort_device_to_string(get_ort_device_from_session(one)) == "cpu"
