"""Run an example script as a reader would, without a screen, and save its pictures: `example.py SCRIPT FOLDER`."""

import runpy
import sys
from pathlib import Path

import matplotlib

matplotlib.use("agg")

if __name__ == "__main__":
    from matplotlib import pyplot as plt

    script, pictures = Path(sys.argv[1]), Path(sys.argv[2])
    sys.argv = [str(script)]
    runpy.run_path(str(script), run_name="__main__")
    for number in plt.get_fignums():
        plt.figure(number).savefig(pictures / f"{script.stem}_{number}.png", dpi=70)
