from tensorplay_core.testing.suite.test_graph_inspection import *  # noqa: F403
