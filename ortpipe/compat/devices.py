"""Devices as names and as the runtime's objects; ortpipe.compat computes on the CPU.

These functions are known from `onnxcustom.utils.onnxruntime_helper`.
"""

import functools
import warnings
from typing import Any

import numpy as np

from ortpipe.compat.parameters import check_known
from ortpipe.errors import ConfigError
from ortpipe.runtime import bindings

OrtDevice, OrtValue = bindings.OrtDevice, bindings.OrtValue  # the runtime's C++ classes
PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}


class ProviderError(ConfigError, RuntimeError):
    """An unknown device or provider (a RuntimeError, as in the original)."""


class DeviceTypeError(ProviderError, TypeError):
    """A value that is not a device."""


def cpu(device: Any) -> str:
    """Return `cpu`, also for a GPU, with one warning per process: the training build reports a GPU on every machine.

    Args:
        device: `cpu`, `cuda`, `gpu`, one of these with `:index`, an OrtDevice or a torch.device.

    Raises:
        ProviderError: an unknown device.

    >>> cpu("cpu")
    'cpu'
    """
    name = getattr(device, "type", device)  # a torch.device has a type
    if get_ort_device_type(get_ort_device(name)) != OrtDevice.cpu():
        _warn_of_gpu()
    return "cpu"


@functools.cache
def _warn_of_gpu() -> None:
    warnings.warn("ortpipe.compat computes on the CPU: it treats the devices 'cuda' and 'gpu' as 'cpu'.", stacklevel=4)


def get_ort_device(device: Any) -> Any:
    """Return the runtime's OrtDevice.

    Raises:
        ProviderError: an unknown name.
        DeviceTypeError: neither a name nor an OrtDevice.

    >>> get_ort_device("gpu:1").device_id()
    1
    """
    if isinstance(device, OrtDevice):
        return device
    if not isinstance(device, str):
        raise DeviceTypeError("A device must be a name or an OrtDevice.", got=repr(device), fix="Use 'cpu'.")
    name, _, index = device.lower().partition(":")
    if name not in ("cpu", "cuda", "gpu") or not (index or "0").isdigit():
        raise ProviderError("A device must be 'cpu', 'cuda' or 'cuda:<index>'.", got=repr(device), fix="Use 'cpu'.")
    kind = OrtDevice.cpu() if name == "cpu" else OrtDevice.cuda()
    return OrtDevice(kind, OrtDevice.default_memory(), int(index or 0))


def get_ort_device_type(device: Any) -> int:
    """Return the runtime's number of a device type: 0 for the CPU, 1 for CUDA.

    Raises:
        ProviderError: an unknown name or kind.
        DeviceTypeError: the value is not a device.
    """
    if isinstance(device, str):
        return int(get_ort_device(device).device_type())
    kind = getattr(device, "device_type", None)
    kind = kind() if callable(kind) else kind  # an onnxruntime.OrtValue has a method that returns a name
    if kind is None:
        raise DeviceTypeError("A device must be a name or have a device_type.", got=repr(device), fix="Use 'cpu'.")
    kinds = {0: OrtDevice.cpu(), "cpu": OrtDevice.cpu(), 1: OrtDevice.cuda(), "cuda": OrtDevice.cuda()}
    if kind not in kinds:
        raise ProviderError("A device must be the CPU or a CUDA device.", got=repr(kind), fix="Use 'cpu'.")
    return int(kinds[kind])


def ort_device_to_string(device: Any) -> str:
    """Return the name of an OrtDevice, with its index unless it is 0.

    >>> ort_device_to_string(get_ort_device("gpu:0"))
    'cuda'
    """
    if not isinstance(device, OrtDevice):
        raise DeviceTypeError(
            "ort_device_to_string needs an OrtDevice.", got=repr(device), fix="Use get_ort_device first."
        )
    name = "cpu" if get_ort_device_type(device) == OrtDevice.cpu() else "cuda"
    return f"{name}:{device.device_id()}" if device.device_id() else name


def device_to_providers(device: Any) -> list[str]:
    """Return the providers of a device, as arguments of an InferenceSession.

    >>> device_to_providers("cpu")
    ['CPUExecutionProvider']
    """
    return [PROVIDERS["cpu" if get_ort_device_type(get_ort_device(device)) == OrtDevice.cpu() else "cuda"]]


def provider_to_device(provider_name: str) -> str:
    """Return the device of a provider.

    >>> provider_to_device("CPUExecutionProvider")
    'cpu'
    """
    devices = {provider: device for device, provider in PROVIDERS.items()}
    check_known(provider_name, devices, "A provider must be the CPU's or CUDA's.", ProviderError)
    return devices[provider_name]


def get_ort_device_from_session(sess: Any) -> Any:
    """Return the OrtDevice of a session's first provider."""
    device = provider_to_device(sess.get_providers()[0])
    index = sess.get_provider_options().get(PROVIDERS[device], {}).get("device_id", 0)
    return get_ort_device(f"{device}:{index}")


def numpy_to_ort_value(arr: np.ndarray, device: Any = None) -> Any:
    """Return an array as the runtime's C++ OrtValue, a copy in memory of the device (by default the CPU's).

    The original shared the array's memory, and read freed memory once the array was deleted.

    >>> numpy_to_ort_value(np.zeros((2, 3), np.float32)).shape()
    [2, 3]
    """
    place = get_ort_device("cpu" if device is None else device)
    value = OrtValue.ortvalue_from_shape_and_type(list(arr.shape), arr.dtype.type, place)
    value.update_inplace(np.ascontiguousarray(arr))
    return value


def array_of(value: Any) -> np.ndarray:
    """Return an array, an OrtValue or a CPU tensor (also one with a gradient) as a plain array on its memory."""
    plain = value.detach() if hasattr(value, "detach") else value
    return np.asarray(plain.numpy() if hasattr(plain, "numpy") else plain)
