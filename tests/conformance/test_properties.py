from tensorplay_core.testing.suite.test_properties import *  # noqa: F403
