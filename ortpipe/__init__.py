"""ortpipe trains ONNX models from config files."""

from typing import TYPE_CHECKING

from ortpipe.doors import door

if TYPE_CHECKING:
    from ortpipe.app.fit import fit as fit
    from ortpipe.app.runs import Run as Run
    from ortpipe.app.runs import Sweep as Sweep
    from ortpipe.app.runs import run as run
    from ortpipe.artifact import Artifact as Artifact
    from ortpipe.artifact_folder import load_artifact as load_artifact
    from ortpipe.artifact_folder import save_artifact as save_artifact
    from ortpipe.autodiff import gradient as gradient
    from ortpipe.data.parts import SplitConfig as SplitConfig
    from ortpipe.data.rows import Data as Data
    from ortpipe.data.rows import Rows as Rows
    from ortpipe.data.split import split as split
    from ortpipe.errors import OrtpipeError as OrtpipeError
    from ortpipe.facts import Facts as Facts
    from ortpipe.flow import FLOW as FLOW
    from ortpipe.runtime.config import RuntimeConfig as RuntimeConfig
    from ortpipe.stages.add_loss.config import AddLossConfig as AddLossConfig
    from ortpipe.stages.add_loss.losses import LOSSES as LOSSES
    from ortpipe.stages.add_loss.losses import Loss as Loss
    from ortpipe.stages.add_loss.stage import add_loss as add_loss
    from ortpipe.stages.convert.config import ConvertConfig as ConvertConfig
    from ortpipe.stages.convert.reading.graph_settings import Given as Given
    from ortpipe.stages.convert.restore import restore as restore
    from ortpipe.stages.convert.stage import convert as convert
    from ortpipe.stages.derive.config import DeriveConfig as DeriveConfig
    from ortpipe.stages.derive.lora import Lora as Lora
    from ortpipe.stages.derive.stage import derive as derive
    from ortpipe.stages.evaluate.config import EvaluateConfig as EvaluateConfig
    from ortpipe.stages.evaluate.stage import evaluate as evaluate
    from ortpipe.stages.penalty.config import PenaltyConfig as PenaltyConfig
    from ortpipe.stages.penalty.stage import penalty as penalty
    from ortpipe.stages.train.config import CheckpointConfig as CheckpointConfig
    from ortpipe.stages.train.config import EarlyStopConfig as EarlyStopConfig
    from ortpipe.stages.train.config import TrainConfig as TrainConfig
    from ortpipe.stages.train.optimizers import OPTIMIZERS as OPTIMIZERS
    from ortpipe.stages.train.optimizers import Optimizer as Optimizer
    from ortpipe.stages.train.schedules import SCHEDULES as SCHEDULES
    from ortpipe.stages.train.schedules import Schedule as Schedule
    from ortpipe.stages.train.stage import train as train
else:
    __getattr__, __dir__, __all__ = door(__name__)
