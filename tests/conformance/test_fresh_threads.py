from tensorplay_core.testing.suite.test_fresh_threads import *  # noqa: F403
