from tensorplay_core.testing.suite.test_graph import *  # noqa: F403
