from tensorplay_core.testing.suite.test_updates import *  # noqa: F403
