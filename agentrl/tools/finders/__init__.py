"""What answers the queries of the tool `search`, if not an index of this process."""
