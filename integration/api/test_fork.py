from tests.api.test_fork import *  # noqa: F403
