from tensorplay_core.testing.suite.test_conditional_errors import *  # noqa: F403
