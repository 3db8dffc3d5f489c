"""Agent programs that exist already: one is started for each episode, and talks to the policy as to an API."""
