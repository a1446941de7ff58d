from tensorplay_core.testing.suite.test_contract import *  # noqa: F403
