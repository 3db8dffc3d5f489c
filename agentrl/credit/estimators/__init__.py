"""Built-in estimators, a file for each family: `outcome` credits trajectories, `turn` credits turns."""
