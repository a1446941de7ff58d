"""How a driver proves itself: a pytest plugin, programs as data, strategies, and the suite.

``pytest --pyargs tensorplay_core.testing.suite --tensorplay-driver NAME`` runs the suite on a
driver. A driver brings a workbench (see ``workbench``); capabilities it lacks are skipped by name.
Nothing is imported from here on its own, so that an environment without pytest or hypothesis does
not notice.
"""
