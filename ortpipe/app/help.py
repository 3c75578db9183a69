"""ortpipe --help: print the commands, every group's choices, and the config that the other arguments compose.

Hydra prints the same, but copies its search path for each group, which takes most of a second.
"""

import textwrap
from collections.abc import Sequence
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from ortpipe.app.compose import WIDTH, Parser, group_choices, unresolved

FLAGS = ("--help", "-h")
TEXT = """{header}
== Configuration groups ==
Compose your configuration from those groups (group=option)

{groups}

== Config ==
Override anything in the config (foo.bar=value)

{config}

Powered by Hydra (https://hydra.cc)
Use --hydra-help to view Hydra specific help
"""


def is_help(arguments: Sequence[str]) -> bool:
    """Return whether the arguments request help, without a flag that only Hydra handles."""
    flags = {argument.partition("=")[0] for argument in arguments if argument.startswith("-")}
    return bool(flags & {*FLAGS}) and flags <= {*FLAGS, "--config-dir", "-cd"}


def print_help(arguments: Sequence[str]) -> None:
    """Print the help."""
    options = Parser("", "").read([word for word in arguments if word not in FLAGS])
    config, _ = unresolved(options.overrides, options.config_dir)
    hydra = HydraConfig.get()
    folders = [Path(source.path) for source in hydra.runtime.config_sources if source.schema == "file"]
    groups = [
        textwrap.fill(f"{group}: {', '.join(sorted(choices))}", WIDTH, subsequent_indent="  ", break_on_hyphens=False)
        for group, choices in sorted(group_choices(folders).items())
        if group.partition("/")[0] != "hydra"
    ]
    text = TEXT.format(header=hydra.help.header, groups="\n".join(groups), config=OmegaConf.to_yaml(config))
    print(text, flush=True)
