from tests.api.test_ends import *  # noqa: F403
