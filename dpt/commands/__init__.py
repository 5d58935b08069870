"""Commands on files: ``dpt NAME ...`` calls ``run(arguments)`` of the module NAME in this folder.

They take ordinary flags; what they need is imported inside ``run``, so that ``dpt --help`` and a
mistyped flag answer at once.
"""
