from tensorplay_core.testing.suite.test_conditional import *  # noqa: F403
