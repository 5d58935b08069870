"""Records that all packages share, in the order of the data: file -> sample -> batch -> tokens ->
output.
"""
