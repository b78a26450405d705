from tests.api.test_exit import *  # noqa: F403
