from tensorplay_core.testing.suite.test_errors import *  # noqa: F403
