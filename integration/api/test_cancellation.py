from tests.api.test_cancellation import *  # noqa: F403
