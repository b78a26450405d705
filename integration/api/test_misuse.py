from tests.api.test_misuse import *  # noqa: F403
