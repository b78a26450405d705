from tests.api.test_window import *  # noqa: F403
