from tests.api.test_reading import *  # noqa: F403
