from tensorplay_core.testing.suite.test_lifetimes import *  # noqa: F403
