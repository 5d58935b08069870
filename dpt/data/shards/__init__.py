"""Data sets as tar shards that can be streamed."""
