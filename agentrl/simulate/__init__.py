"""The scale simulator: predicts the throughput of a training run on a cluster."""
