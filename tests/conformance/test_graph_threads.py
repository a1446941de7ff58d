from tensorplay_core.testing.suite.test_graph_threads import *  # noqa: F403
