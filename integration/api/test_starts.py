from tests.api.test_starts import *  # noqa: F403
