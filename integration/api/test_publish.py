from tests.api.test_publish import *  # noqa: F403
