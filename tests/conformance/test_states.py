from tensorplay_core.testing.suite.test_states import *  # noqa: F403
