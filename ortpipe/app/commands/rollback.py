"""ortpipe rollback: give the alias of a registered model back to the version before the champion."""

from collections.abc import Sequence

from ortpipe.app.compose import Parser
from ortpipe.app.schema import build_key
from ortpipe.app.tracking import roll_back
from ortpipe.errors import ConfigError

ABOUT = """Give the alias (champion) of a registered model back to the version that had it before. Versions
stay as they are, so a later run can replace the champion again. recorder.tracking_uri and
recorder.alias name another registry and another alias."""
EXAMPLES = (
    "ortpipe rollback churn",
    "ortpipe rollback churn recorder.tracking_uri=http://127.0.0.1:5000",
)


def run(arguments: Sequence[str]) -> None:
    """Roll a registered model back."""
    parser = Parser("rollback", ABOUT, EXAMPLES, names=True)
    options = parser.read(arguments)
    if len(options.names) != 1:
        rule, fix = "ortpipe rollback needs the name of one registered model.", "Write ortpipe rollback NAME."
        raise ConfigError(rule, got=" ".join(options.names) or "none", fix=fix)
    recorder = options.composed.values["recorder"]
    if recorder["name"] != "mlflow":
        raise ConfigError("Models are registered in MLflow.", got=f"recorder={recorder['name']}", fix="Leave it out.")
    target = build_key("recorder", {**recorder, "register": options.names[0]})
    lost, got = roll_back(target)
    print(f"{target.register}: version {got} is {target.alias} again (it was version {lost})")
