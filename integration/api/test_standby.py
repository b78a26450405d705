from tests.api.test_standby import *  # noqa: F403
