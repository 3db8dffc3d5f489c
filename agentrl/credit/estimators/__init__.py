"""Built-in estimators, one file per family: `outcome` credits trajectories, `turn` credits turns."""
