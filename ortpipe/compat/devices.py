"""The devices that the earlier classes name: ortpipe runs on the CPU."""

from typing import Any

from ortpipe.errors import ConfigError


def cpu(device: Any) -> str:
    """Return `cpu` for the name or the OrtDevice of one.

    Raises:
        ConfigError: another device.

    >>> cpu("cpu")
    'cpu'
    """
    name = device.lower().partition(":")[0] if isinstance(device, str) else _kind(device)
    if name != "cpu":
        raise ConfigError("These classes run on the CPU.", got=repr(device), fix="Use device='cpu'.")
    return "cpu"


def _kind(device: Any) -> str:
    kind = getattr(device, "device_type", None)
    kind = kind() if callable(kind) else kind  # a method of the binding, an attribute in some versions
    cpu_kind = getattr(device, "cpu", lambda: 0)()
    return "cpu" if kind in (cpu_kind, "cpu") else repr(device)
