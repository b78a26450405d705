from tests.api.test_conditional import *  # noqa: F403
