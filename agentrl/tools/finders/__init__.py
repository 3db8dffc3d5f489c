"""Search engines outside this process, for the tool `search`: a server, web-search APIs, a model."""
