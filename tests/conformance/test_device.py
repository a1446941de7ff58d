from tensorplay_core.testing.suite.test_device import *  # noqa: F403
