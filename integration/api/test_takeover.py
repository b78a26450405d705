from tests.api.test_takeover import *  # noqa: F403
