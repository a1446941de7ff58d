from tensorplay_core.testing.suite.test_pool import *  # noqa: F403
