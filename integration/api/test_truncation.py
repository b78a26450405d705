from tests.api.test_truncation import *  # noqa: F403
