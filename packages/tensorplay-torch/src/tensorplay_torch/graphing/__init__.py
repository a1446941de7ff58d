"""Callables served from graphs: ``make_graphed_callables`` and ``graphed``."""
