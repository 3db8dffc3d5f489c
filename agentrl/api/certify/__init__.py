"""`agentrl env check`: whether an environment can be trained on."""
