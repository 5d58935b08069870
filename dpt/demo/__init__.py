"""A web page for one checkpoint, served from this computer."""
