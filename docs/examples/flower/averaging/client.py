"""The client: it trains a bundle on its own rows."""

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from averaging.bundle import Bundle

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train on the rows of this client's file."""
    rows = np.load(context.node_config["rows"])
    [weights] = message.content["arrays"].to_numpy_ndarrays()
    after, losses = Bundle(context.node_config["bundle"]).fit(weights, rows["x"], rows["y"])
    metrics = MetricRecord({"num-examples": rows["x"].shape[0] * rows["x"].shape[1], "loss": float(losses.mean())})
    return Message(RecordDict({"arrays": ArrayRecord([after]), "metrics": metrics}), reply_to=message)
