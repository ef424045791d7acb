"""Who calls the function that scans a shard."""
