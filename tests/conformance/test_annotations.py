from tensorplay_core.testing.suite.test_annotations import *  # noqa: F403
