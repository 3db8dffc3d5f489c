"""Built-in samplers, schedules and filters, one file per method."""
