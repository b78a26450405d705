from tests.api.test_order import *  # noqa: F403
