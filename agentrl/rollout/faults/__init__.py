"""What each kind of failure makes of an episode, and when failures end a run."""
