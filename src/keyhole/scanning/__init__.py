"""From a plan of the corpus to the finished run: one plan per scan, one function per shard."""
