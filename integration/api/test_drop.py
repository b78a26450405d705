from tests.api.test_drop import *  # noqa: F403
