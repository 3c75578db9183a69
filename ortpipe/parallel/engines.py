"""Check that an engine can train in parallel."""

from ortpipe.errors import ConfigError
from ortpipe.parallel.config import ParallelConfig


def check_engine(config: ParallelConfig, engine: str) -> None:
    """Reject C, devices without XLA, XLA without devices, and devices that exchange less often than in every step."""
    by_devices = config.transport == "devices"
    if engine == "auto":  # which chooses XLA for devices, else ONNX Runtime
        engine = "xla" if by_devices else "onnxruntime"
    if engine == "c" or by_devices != (engine == "xla"):
        other = ", or {@train/parallel}=devices." if engine == "xla" else "."
        raise ConfigError(
            "XLA trains in parallel on devices, and ONNX Runtime in processes or on a cluster.",
            got=f"runtime.engine={engine} with train/parallel={config.transport}",
            fix="Set {@runtime.engine}=" + ("xla." if by_devices else f"onnxruntime{other}"),
        )
    if by_devices and config.every != "step":
        raise ConfigError(
            "Devices exchange gradients in every step.",
            got=f"train.parallel.every={config.every}",
            fix="Set {@train.parallel.every}=step, or {@train/parallel}=processes and {@runtime.engine}=onnxruntime.",
        )
