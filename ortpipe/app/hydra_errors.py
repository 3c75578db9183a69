"""Turn Hydra's errors into ours: the rule, and the nearest valid choice for a misspelt name."""

import re
from collections.abc import Sequence, Set

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf.errors import OmegaConfBaseException
from yaml import MarkedYAMLError, YAMLError

from ortpipe.app.command_list import COMMANDS, is_word
from ortpipe.app.compose import group_choices, packaged_conf
from ortpipe.errors import ConfigError, nearest

REFUSALS = (HydraException, OmegaConfBaseException, YAMLError)  # that composing raises
UNKNOWN_GROUP = re.compile(r"In '(.+)': Could not override '(.+?)'")
EXTRAS = {  # the extras that install the plugins of Hydra's choices
    "hydra/launcher/joblib": "joblib",
    "hydra/launcher/ray": "ray",
    "hydra/launcher/submitit_local": "submitit",
    "hydra/launcher/submitit_slurm": "submitit",
}


def explained(error: Exception) -> ConfigError:
    """Return our error for one of Hydra's, with the nearest valid key if a key is misspelt."""
    from ortpipe.app.schema import keys, keys_of

    if isinstance(error, OverrideParseException):
        if is_word(error.override):
            rule = f"{error.override} is neither a command nor a key=value pair."
            hint = f"The command must come first: ortpipe {error.override} …" if error.override in COMMANDS else None
            return ConfigError(rule, fix=hint or nearest(error.override, COMMANDS))
        if "=" not in error.override and not error.override.startswith("~"):
            return ConfigError("An override must be key=value.", got=error.override, fix=f"Write {error.override}=…")
        name, _, value = error.override.partition("=")
        fix = "Write names that contain brackets, quotes or dots in an experiment file: see docs/howto/run.md."
        if re.fullmatch(r"[\w.+/]+", name) and not set(value) & set("[]{}'\"\\"):  # a path, say
            fix = f"Quote the value: '{name}=\"{value}\"'"
        return ConfigError(f"Hydra cannot parse the override {error.override}.", fix=fix)
    missing = str(getattr(error, "missing_cfg_file", None))
    if missing in EXTRAS:
        fix = f"pip install 'ortpipe[{EXTRAS[missing]}]'"
        return ConfigError(f"{missing} comes with an extra package that is not installed.", fix=fix)
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options:
        return _unknown_choice(error.missing_cfg_file, error.options, set(keys()))
    if isinstance(error, MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        rule, place = "A config file must be valid YAML.", f"{mark.name}, line {mark.line + 1}: {error.problem}"
        return ConfigError(rule, got=place, fix="Correct that line: mind indentation, colons, brackets and quotes.")
    if match := UNKNOWN_GROUP.search(str(error)):
        file, group = match.groups()
        groups = group_choices([packaged_conf()])
        fix = f"Leave out both (~{file.partition('/')[0]}), or none." if group in groups else nearest(group, groups)
        if "@" in group:  # Hydra appends the file's own package unless the file sets another
            fix = "Begin the file with # @package _global_: after another comment Hydra does not read it."
        return ConfigError(f"{file}.yaml must override groups of the config.", got=group, fix=fix)
    cause: BaseException | None = error
    while cause is not None:
        key = getattr(cause, "full_key", None)
        if key and "not in struct" in str(cause):
            parent, group = key.rpartition(".")[0], getattr(cause, "parent_node", None)
            member = group.get("name") if group is not None and parent else None
            return _unknown_key(str(key), sorted(set(keys())), list(keys_of(parent, member)))
        cause = cause.__cause__
    key, reason = getattr(error, "full_key", None), str(error).strip() or str(error.__cause__ or type(error).__name__)
    rule = f"{key or 'Each override'} must follow Hydra's grammar."
    return ConfigError(rule, got=reason, fix="Write key=value, and quote special characters: see docs/howto/run.md.")


def _unknown_choice(file: str, options: Sequence[str], valid: Set[str]) -> ConfigError:
    """Return an error with the valid choices; for experiment=networks/mpl the experiments in that folder."""
    folders = group_choices([packaged_conf()])
    group, _, choice = file.rpartition("/")
    if group in folders and folders[group] <= set(options):
        folded = {name.removeprefix(f"{group}/") for name in folders if name.replace("/", ".") not in valid}
        nested = {f"{name}/{c}" for name in folded for c in folders.get(f"{group}/{name}", ())}
        return ConfigError(f"{group}={choice} is not a choice.", fix=nearest(choice, nested | set(options)))
    inner = group in folders
    while "/" in group and (inner or group not in folders):
        group, _, folder = group.rpartition("/")
        choice, inner = f"{folder}/{choice}", False
    files = [f"{name}/{c}" for name, inside in folders.items() for c in inside]
    below = {name.removeprefix(f"{group}/") for name in files if name.startswith(f"{group}/")}
    alike = {name for name in below if name.startswith(f"{choice.rpartition('/')[0]}/")}
    return ConfigError(f"{group}={choice} is not a choice.", fix=nearest(choice, alike or below | set(options)))


def _unknown_key(key: str, valid: list[str], siblings: list[str]) -> ConfigError:
    if key in valid:
        return ConfigError(
            f"{key} belongs to another choice of its group, or the chosen file does not list it.",
            fix=f"Choose {_choices_with(key) or 'the file that has it'}, or add it with +{key}=…",
        )
    parents = [key[:i] for i, letter in enumerate(key) if letter == "."]
    parent = next((p for p in reversed(parents) if p in valid), None)
    if parent is not None and not any(k.startswith(f"{parent}.") for k in valid):  # its keys are the user's own
        fix = f"Write +{key}=…; write a name that contains dots in an experiment file."
        return ConfigError(f"{key} is a new key, which must be added with a plus.", fix=fix)
    groups = [group for group in group_choices([packaged_conf()]) if group.rpartition("/")[2] == key]
    hint = f"Did you mean {groups[0]}=…? " if groups else ""
    return ConfigError(f"{key} is not a key of the config.", fix=hint + nearest(key, siblings))


def _choices_with(key: str) -> str:
    """Return the choices of a group whose files list a key, as arguments; "" if the key's parent is not a group."""
    *parents, name = key.split(".")
    files = sorted(packaged_conf().joinpath(*parents).glob("*.yaml"))
    files = [file for file in files if re.search(rf"^{name}:", file.read_text(encoding="utf-8"), re.M)]
    return " or ".join(f"{'/'.join(parents)}={file.stem}" for file in files)
