"""Published data sets and folders."""
