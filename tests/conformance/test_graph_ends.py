from tensorplay_core.testing.suite.test_graph_ends import *  # noqa: F403
