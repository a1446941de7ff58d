from tensorplay_core.testing.suite.test_finalisers import *  # noqa: F403
