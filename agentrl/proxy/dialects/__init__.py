"""APIs of agent programs, one file each. All are converted to one internal format, chat completions."""
