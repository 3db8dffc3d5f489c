"""The APIs that agent programs use, one file each. All are converted to one internal format, chat completions."""
