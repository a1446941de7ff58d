from tensorplay_core.testing.suite.test_control_flow import *  # noqa: F403
