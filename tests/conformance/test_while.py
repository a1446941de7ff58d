from tensorplay_core.testing.suite.test_while import *  # noqa: F403
