"""The champion of a registered model: the version with the alias, its file, and the one before it."""

from pathlib import Path
from typing import Any, NamedTuple

from ortpipe.app.tracking.client import client_at, or_none, reached
from ortpipe.app.tracking.models import fetch, model_file
from ortpipe.app.tracking.target import Target
from ortpipe.errors import TrackingError

REPLACED = "ortpipe.replaced"  # the tag of a version with the version that had the alias before it


class Champion(NamedTuple):
    """The file of the version that has the alias, and that version's URI."""

    uri: str
    file: Path


def holder_of(client: Any, target: Target) -> Any:
    """Return the version with the alias, None if there is none."""
    return or_none(lambda: client.get_model_version_by_alias(target.register, target.alias))


def champion_of(target: Target) -> Champion | None:
    """Return the champion, if there is one."""
    with reached(target.tracking_uri):
        holder = holder_of(client_at(target.tracking_uri), target)
    if holder is None:
        return None
    model = fetch(f"models:/{target.register}/{holder.version}", target.tracking_uri)
    return Champion(model.uri, model_file(model, "onnx"))


def move_alias(client: Any, target: Target, version: str) -> None:
    """Give a version the alias, which MLflow moves in one step; the version records the one before it."""
    holder = holder_of(client, target)
    if holder is not None and str(holder.version) != version:
        client.set_model_version_tag(target.register, version, f"{REPLACED}.{target.alias}", str(holder.version))
    client.set_registered_model_alias(target.register, target.alias, version)


def roll_back(target: Target) -> tuple[str, str]:
    """Give the alias back to the version before the champion; return the versions that have lost and got it."""
    name, fix = f"{target.register}@{target.alias}", "See the versions in MLflow, and recorder.tracking_uri."
    with reached(target.tracking_uri):
        client = client_at(target.tracking_uri)
        holder = holder_of(client, target)
        if holder is None:
            raise TrackingError("The registered model must have a champion.", got=f"{name}: none", fix=fix)
        before = holder.tags.get(f"{REPLACED}.{target.alias}")
        if before is None:
            rule = "A champion that replaced no version cannot be rolled back."
            raise TrackingError(rule, got=f"{name}, version {holder.version}", fix=fix)
        if or_none(lambda: client.get_model_version(target.register, before)) is None:
            rule = "The version before the champion must exist."
            raise TrackingError(rule, got=f"{name}: version {before} was deleted", fix=fix)
        client.set_registered_model_alias(target.register, target.alias, before)
    return str(holder.version), before
