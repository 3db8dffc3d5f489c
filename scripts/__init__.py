"""Programs for whoever works on agentrl: environments, families, measurements of the tests."""
