"""Built-in samplers, schedules and filters, a file for each method."""
