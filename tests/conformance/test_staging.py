from tensorplay_core.testing.suite.test_staging import *  # noqa: F403
