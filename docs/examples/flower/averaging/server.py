"""The server: it averages the weights of the clients, and writes the result."""

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from averaging.bundle import Bundle

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds from the weights of the bundle."""
    start = ArrayRecord([Bundle(context.run_config["bundle"]).arrays["parameters"]])
    strategy = FedAvg(fraction_evaluate=0.0)
    result = strategy.start(grid, start, num_rounds=context.run_config["rounds"])
    for number, metrics in result.train_metrics_clientapp.items():
        print(f"round {number}: loss {metrics['loss']:.6f}")
    np.save(f"{context.run_config['bundle']}.npy", result.arrays.to_numpy_ndarrays()[0])
