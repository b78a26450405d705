from tests.api.test_producers import *  # noqa: F403
