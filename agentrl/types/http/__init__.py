"""The way to servers of others: addresses that may be reached, bodies with bounds, one transport, and its clients."""
