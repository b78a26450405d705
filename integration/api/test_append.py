from tests.api.test_append import *  # noqa: F403
