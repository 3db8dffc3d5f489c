"""The episode core: the record, the token graph, the session that an agent drives, the runner, the failure table.

Nothing here knows of torch.
"""
