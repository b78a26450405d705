from tests.api.test_crowds import *  # noqa: F403
