"""The APIs that agent programs speak, a file each. All become one internal form: that of chat completions."""
