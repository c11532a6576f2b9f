"""What evaluations and comparisons of runs are made of: trajectories, evaluators, intervals, baselines, plots."""
